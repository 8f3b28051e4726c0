// The same map as lines between two columns of tokens: sources on the left, targets on the right.

import { Ink, LIGHT } from "./colours";
import { h, replace, svg } from "./dom";
import { addCaption, FONT, cut, drawBar } from "./figure";
import { OWN } from "./groups";
import { placeOf, SOURCE, TARGET, type Heat, type HeatActions, type Pin } from "./heatframe";

const TOP = 70;
const BAR = 100;

/** Where tokens stand; of those that are not in the window, nothing. */
interface Geometry {
  width: number;
  height: number;
  left: number;
  right: number;
  row: number;
  sources: number[];
  targets: number[];
  headings: { name: string; y: number; side: "left" | "right"; divides: boolean }[];
}

/** Sources stand by their sequence, each below its name; targets beside the middle of them. */
function geometryOf(heat: Heat, room: { width: number; height: number }): Geometry {
  const two = heat.groups.length > 0;
  let { rows, columns } = heat.window;
  // Of one sequence the same tokens stand on both sides.
  if (!two) rows = columns = [Math.min(rows[0], columns[0]), Math.max(rows[1], columns[1])];
  const groups = two ? heat.groups : [{ name: "", from: columns[0], to: columns[1] }];
  const inside = groups
    .map(({ name, from, to }) => ({ name, from: Math.max(from, columns[0]), to: Math.min(to, columns[1]) }))
    .filter(({ from, to }) => from < to);
  const above = two ? 1 : 0; // places for a name
  const gap = 0.5;
  const count = columns[1] - columns[0] + inside.length * above + (inside.length - 1) * gap;
  const targetCount = rows[1] - rows[0] + above;
  const most = Math.max(count, targetCount);
  const row = Math.max(13, Math.min(46, (room.height - TOP - BAR) / most));
  const width = Math.min(room.width, 720);
  const left = Math.min(190, width * 0.28);
  const at = (place: number) => TOP + (place + 0.5) * row;
  const [sources, targets]: number[][] = [[], []];
  const headings: Geometry["headings"] = [];
  let place = (most - count) / 2;
  inside.forEach(({ name, from, to }, k) => {
    if (k > 0) place += gap;
    if (two) headings.push({ name, y: at(place++), side: "left", divides: k > 0 });
    for (let column = from; column < to; column++) sources[column] = at(place++);
  });
  place = (most - targetCount) / 2;
  if (two) headings.push({ name: OWN, y: at(place++), side: "right", divides: false });
  for (let target = rows[0]; target < rows[1]; target++) targets[target] = at(place++);
  return { width, height: TOP + most * row + BAR, left, right: width - left, row, sources, targets, headings };
}

interface Line {
  target: number;
  source: number;
  t: number;
}

export class ArcView {
  readonly el: HTMLElement;
  private readonly canvas = h("canvas", { "aria-hidden": "true" });
  private readonly overlay = svg("svg", { class: "overlay", role: "img", tabindex: 0 });
  private heat: Heat | null = null;
  private ink: Ink = LIGHT;
  private hovered: Pin | null = null;
  private geometry: Geometry = { width: 0, height: 0, left: 0, right: 0, row: 0, sources: [], targets: [], headings: [] };

  constructor(private readonly actions: HeatActions) {
    this.el = h("div", { class: "figure", "data-figure": "arcs" }, this.canvas, this.overlay);
    const overlay = this.overlay as unknown as HTMLElement;
    overlay.addEventListener("pointermove", (event) => this.hover(this.find(event)));
    overlay.addEventListener("pointerleave", () => this.hover(null));
    overlay.addEventListener("click", (event) => {
      const pin = this.find(event);
      if (pin !== null) this.actions.pin(pin);
    });
  }

  draw(heat: Heat, room: { width: number; height: number }, ink: Ink): void {
    this.heat = heat;
    this.ink = ink;
    this.geometry = geometryOf(heat, room);
    const { width } = this.geometry;
    const { canvas, overlay, geometry } = this;
    overlay.setAttribute("viewBox", `0 0 ${width} ${geometry.height}`);
    overlay.setAttribute("width", String(width));
    overlay.setAttribute("height", String(geometry.height));
    overlay.setAttribute("font-family", FONT);
    overlay.setAttribute(
      "aria-label",
      `${heat.title}: lines from sources (left) to targets (right); strong lines are large values`,
    );
    this.el.style.width = `${width}px`;
    this.el.style.height = `${geometry.height}px`;
    canvas.style.left = "0px";
    canvas.style.top = "0px";
    canvas.style.width = `${width}px`;
    canvas.style.height = `${geometry.height}px`;
    this.redraw();
  }

  saved(): SVGElement {
    const heat = this.heat as Heat;
    const { width, height } = this.geometry;
    const light: Heat = { ...heat, colouring: heat.recolour(false) };
    const figure = svg("svg", {
      xmlns: "http://www.w3.org/2000/svg",
      viewBox: `-8 -8 ${width + 16} ${height + 16}`,
      width: width + 16,
      height: height + 16,
      "font-family": FONT,
    });
    figure.append(
      svg("rect", { x: -8, y: -8, width: width + 16, height: height + 16, fill: LIGHT.paper }),
    );
    const lines = svg("g", { class: "lines", fill: "none" });
    const drawn = this.lines(heat.pin);
    for (const line of drawn) {
      const { path, style } = this.line(line, LIGHT, light, faint(drawn.length));
      lines.append(svg("path", { d: path, ...style }));
    }
    figure.append(lines);
    this.labels(figure, light, LIGHT, heat.pin);
    addCaption(figure, heat.caption, LIGHT);
    return figure;
  }

  private redraw(): void {
    const heat = this.heat as Heat;
    const focus = this.hovered ?? heat.pin;
    const density = Math.min(3, window.devicePixelRatio || 1);
    const { width, height } = this.geometry;
    this.canvas.width = Math.round(width * density);
    // Browsers draw nothing on a canvas that is too tall.
    const scale = Math.min(density, 16000 / height);
    this.canvas.height = Math.round(height * scale);
    const context = this.canvas.getContext("2d") as CanvasRenderingContext2D;
    context.scale(density, scale);
    const lines = this.lines(focus);
    const faintness = faint(lines.length);
    for (const line of lines) {
      const { path, style } = this.line(line, this.ink, heat, faintness);
      context.globalAlpha = style["stroke-opacity"];
      context.lineWidth = style["stroke-width"];
      context.strokeStyle = style.stroke;
      context.stroke(new Path2D(path));
    }
    this.el.dataset.lines = String(lines.length);
    replace(this.overlay);
    this.labels(this.overlay, heat, this.ink, focus);
  }

  /** The strongest lines, faint ones first; of one token, all of them. */
  private lines(focus: Pin | null): Line[] {
    const heat = this.heat as Heat;
    const { map, mask, colouring, window: shown } = heat;
    const lines: Line[] = [];
    for (let i = shown.rows[0]; i < shown.rows[1]; i++) {
      if (focus?.axis === "row" && focus.index !== i) continue;
      for (let j = shown.columns[0]; j < shown.columns[1]; j++) {
        if (focus?.axis === "column" && focus.index !== j) continue;
        const k = placeOf(heat, { target: i, source: j });
        if ((mask !== null && !mask[k]) || !(map[k] > 0)) continue;
        const t = colouring.at(k);
        if (t >= 0) lines.push({ target: i, source: j, t: Math.min(1, t) });
      }
    }
    lines.sort((a, b) => a.t - b.t);
    // More lines than a few for each token are a surface, not lines.
    return lines.slice(-Math.max(200, 4 * heat.rows.length));
  }

  private line(line: Line, ink: Ink, heat: Heat, faintness: number) {
    const { left, right, sources, targets } = this.geometry;
    const [y0, y1] = [sources[line.source], targets[line.target]];
    const bend = (right - left) * 0.45;
    const path = `M${left},${y0}C${left + bend},${y0} ${right - bend},${y1} ${right},${y1}`;
    const marked =
      heat.pair !== null && heat.pair.target === line.target && heat.pair.source === line.source;
    return {
      path,
      style: {
        stroke: marked ? ink.accent : ink.dark ? "#8fb4ff" : "#2450b8",
        "stroke-opacity": marked ? 1 : faintness * strength(line.t),
        "stroke-width": marked ? 3 : 0.6 + 4.4 * line.t,
      },
    };
  }

  private labels(into: SVGElement, heat: Heat, ink: Ink, focus: Pin | null): void {
    const { left, right, row, height, sources, targets, headings } = this.geometry;
    const words = (x: number, y: number, text: string, more: Record<string, unknown>) =>
      into.append(svg("text", { x, y, fill: ink.text, ...more }, text));
    words(0, 14, heat.title, { "font-size": 14, "font-weight": 650 });
    words(0, 31, heat.subtitle, { "font-size": 11.5, fill: ink.muted });
    const heading = { "font-size": 11.5, fill: ink.muted };
    words(left - 8, TOP - 12, SOURCE, { ...heading, "text-anchor": "end" });
    words(right + 8, TOP - 12, TARGET, heading);
    const size = Math.max(10, Math.min(15, row * 0.62));
    const shade = (axis: Pin["axis"], k: number) => {
      const chosen = focus !== null && focus.axis === axis && focus.index === k;
      if (chosen) return { fill: ink.accent, "font-weight": 700 };
      return heat.special[`${axis}s`][k] ? { fill: ink.muted } : {};
    };
    // Tokens outside the window have no place.
    sources.forEach((y, k) =>
      words(left - 8, y + size * 0.35, cut(heat.columns[k]), {
        "text-anchor": "end", "font-size": size, class: "source-label", ...shade("column", k),
      }),
    );
    targets.forEach((y, k) =>
      words(right + 8, y + size * 0.35, cut(heat.rows[k]), {
        "font-size": size, class: "target-label", ...shade("row", k),
      }),
    );
    for (const { name, y, side } of headings) {
      const place = side === "left" ? { x: left - 8, "text-anchor": "end" } : { x: right + 8 };
      into.append(svg("text", { ...place, y: y + 4, class: "group-name", "font-size": 11.5, "font-weight": 650, fill: ink.text }, name));
    }
    for (const heading of headings.filter(({ divides }) => divides)) {
      const y = heading.y - 0.75 * row;
      into.append(svg("line", { class: "divider", x1: 0, x2: left, y1: y, y2: y, stroke: ink.muted }));
    }
    drawLegend(into, heat, left, height - BAR + 12, ink);
  }

  private find(event: MouseEvent): Pin | null {
    const { width, left, right, row, sources, targets } = this.geometry;
    const box = this.overlay.getBoundingClientRect();
    const scale = width / box.width;
    const x = (event.clientX - box.left) * scale;
    const y = (event.clientY - box.top) * scale;
    if (x > left && x < right) return null;
    const index = (x <= left ? sources : targets).findIndex((place) => Math.abs(place - y) <= row / 2);
    return index < 0 ? null : { axis: x <= left ? "column" : "row", index };
  }

  private hover(pin: Pin | null): void {
    const overlay = this.overlay as unknown as HTMLElement;
    overlay.style.cursor = pin === null ? "default" : "pointer";
    if (pin?.axis === this.hovered?.axis && pin?.index === this.hovered?.index) return;
    this.hovered = pin;
    if (this.heat !== null) this.redraw();
  }
}

/** How opaque a line is. Faint lines are many, so they are drawn fainter still. */
function strength(t: number): number {
  return Math.min(0.92, 0.04 + 0.86 * t ** 1.4);
}

/** Many lines are drawn fainter, so that single ones can be followed. */
function faint(count: number): number {
  return count > 300 ? 0.55 : 1;
}

function drawLegend(into: SVGElement, heat: Heat, x: number, y: number, ink: Ink): void {
  const stroke = ink.dark ? "#8fb4ff" : "#2450b8";
  // Lines have no colour for what is beyond the scale; they are as strong as at its end.
  const scale = heat.colouring.scale?.replace(/beyond it, \w+:/, "as strong beyond it:");
  // The bar of a heat map, in the lines' own colour and strength.
  drawBar(
    into,
    { ...heat.colouring, scale, beyond: false, colour: (t) => blend(stroke, ink.paper, strength(t)) },
    x,
    y,
    260,
    ink,
  );
}

function blend(over: string, under: string, share: number): string {
  const part = (colour: string, at: number) => parseInt(colour.slice(at, at + 2), 16);
  const mixed = [1, 3, 5].map((at) =>
    Math.round(share * part(over, at) + (1 - share) * part(under, at)),
  );
  return `rgb(${mixed.join(",")})`;
}
