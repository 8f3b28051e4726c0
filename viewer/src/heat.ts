// A heat map: cells on a canvas, everything else as SVG above it. Saved figures are SVG throughout.

import { Colouring, Ink, LIGHT, pixels, readableOn } from "./colours";
import { h, replace, svg } from "./dom";
import { Mask } from "./measures";

export const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", Arial, sans-serif';
export const SOURCE = "source j (input)";
export const TARGET = "target i (output)";

export interface Window_ {
  rows: [number, number]; // from, to (not included)
  columns: [number, number];
}

export interface Pin {
  axis: "row" | "column";
  index: number;
}

export interface Cell {
  target: number;
  source: number;
}

export interface Heat {
  name: string; // of the panel, such as "map" or "difference"
  title: string;
  subtitle: string;
  map: Float32Array;
  mask: Mask;
  n: number;
  rows: string[];
  columns: string[];
  special: boolean[];
  colouring: Colouring;
  recolour: (dark: boolean) => Colouring;
  brief: (value: number) => string; // as it is written into cells
  window: Window_;
  pin: Pin | null;
  pair: Cell | null;
  caption: string;
}

export interface HeatActions {
  hover(cell: Cell | null, event: PointerEvent | null): void;
  pin(pin: Pin): void;
  pair(cell: Cell): void;
  zoom(window: Window_ | null): void;
}

interface Layout {
  width: number;
  height: number;
  left: number;
  top: number;
  side: { width: number; height: number };
  cell: number;
  font: number;
  slanted: boolean;
  every: number;
}

const TITLE = 38; // room above the axis words
const AXIS = 18;
const BAR = 56; // room below the cells
const LONGEST = 20; // characters of a label

export function whole(n: number): Window_ {
  return { rows: [0, n], columns: [0, n] };
}

let measuring: CanvasRenderingContext2D | null = null;

export function textWidth(text: string, size: number): number {
  measuring ??= document.createElement("canvas").getContext("2d");
  if (measuring === null) return text.length * size * 0.6;
  measuring.font = `${size}px ${FONT}`;
  return measuring.measureText(text).width;
}

const measured = new WeakMap<string[], Map<string, number>>();

/** The width of the widest of some labels at a size of 10; measuring many takes long. */
function widestLabel(labels: string[], from: number, to: number): number {
  const known = measured.get(labels) ?? new Map<string, number>();
  measured.set(labels, known);
  const key = `${from}:${to}`;
  let width = known.get(key);
  if (width === undefined) {
    width = 0;
    for (let k = from; k < to; k++) width = Math.max(width, textWidth(cut(labels[k]), 10));
    known.set(key, width);
  }
  return width;
}

export function cut(label: string, most = LONGEST): string {
  const characters = [...label];
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : label;
}

function layoutOf(heat: Heat, room: { width: number; height: number }): Layout {
  const rows = heat.window.rows[1] - heat.window.rows[0];
  const columns = heat.window.columns[1] - heat.window.columns[0];
  const most = Math.max(rows, columns);
  let font = 11;
  let layout: Layout | null = null;
  for (let round = 0; round < 3; round++) {
    const widest = (labels: string[], [from, to]: [number, number]) =>
      Math.max(12, (font / 10) * widestLabel(labels, from, to));
    const left = AXIS + 8 + Math.ceil(widest(heat.rows, heat.window.rows));
    const slanted: boolean = layout !== null && layout.cell > 2.1 * font;
    const widestColumn = widest(heat.columns, heat.window.columns);
    const above = Math.ceil(slanted ? widestColumn * 0.72 + font : widestColumn);
    const top = TITLE + AXIS + 6 + above;
    // A slanted label of the last column leans out to the right.
    const right: number = slanted ? Math.max(10, Math.ceil(above - layout!.cell / 2)) : 10;
    const side = Math.max(120, Math.min(room.width - left - right, room.height - top - BAR));
    const cell = side / most;
    layout = {
      width: left + Math.max(cell * columns, 180) + right,
      height: top + cell * rows + BAR,
      left,
      top,
      side: { width: cell * columns, height: cell * rows },
      cell,
      font,
      slanted,
      every: Math.max(1, Math.ceil((font + 1) / cell)),
    };
    font = Math.max(9, Math.min(14, Math.floor(cell * 0.6)));
    layout.font = font;
    layout.every = Math.max(1, Math.ceil((font + 1) / cell));
  }
  return layout as Layout;
}

/** Everything but the cells. */
function drawFrame(into: SVGElement, heat: Heat, layout: Layout, ink: Ink): void {
  const { left, top, side, cell, font, every } = layout;
  const words = (x: number, y: number, text: string, more: Record<string, unknown> = {}) =>
    into.append(svg("text", { x, y, fill: ink.text, "font-size": font, ...more }, text));
  words(0, 14, heat.title, { "font-size": 14, "font-weight": 650 });
  words(0, 31, heat.subtitle, { "font-size": 11.5, fill: ink.muted });
  words(left + side.width / 2, TITLE + 12, SOURCE, {
    "text-anchor": "middle",
    "font-size": 11.5,
    fill: ink.muted,
  });
  words(0, 0, TARGET, {
    "text-anchor": "middle",
    "font-size": 11.5,
    fill: ink.muted,
    transform: `translate(11 ${top + side.height / 2}) rotate(-90)`,
  });
  const shade = (axis: Pin["axis"], k: number) => {
    const pinned = heat.pin !== null && heat.pin.axis === axis && heat.pin.index === k;
    if (pinned) return { fill: ink.accent, "font-weight": 700 };
    return heat.special[k] ? { fill: ink.muted } : {};
  };
  const shown = (k: number, from: number, axis: Pin["axis"]) =>
    (k - from) % every === 0 || (heat.pin?.axis === axis && heat.pin.index === k);
  const [row, lastRow] = heat.window.rows;
  const rows = svg("g", { class: "row-labels" });
  for (let k = row; k < lastRow; k++) {
    if (!shown(k, row, "row")) continue;
    const y = top + (k - row + 0.5) * cell + font * 0.35;
    rows.append(
      svg(
        "text",
        { x: left - 6, y, "text-anchor": "end", "font-size": font, fill: ink.text, ...shade("row", k) },
        cut(heat.rows[k]),
      ),
    );
  }
  const [column, lastColumn] = heat.window.columns;
  const columns = svg("g", { class: "column-labels" });
  for (let k = column; k < lastColumn; k++) {
    if (!shown(k, column, "column")) continue;
    const x = left + (k - column + 0.5) * cell;
    const turn = layout.slanted
      ? `translate(${x - font * 0.1} ${top - 6}) rotate(-45)`
      : `translate(${x + font * 0.35} ${top - 6}) rotate(-90)`;
    columns.append(
      svg(
        "text",
        { transform: turn, "font-size": font, fill: ink.text, ...shade("column", k) },
        cut(heat.columns[k]),
      ),
    );
  }
  into.append(rows, columns);
  drawBar(into, heat.colouring, left, top + side.height + 14, Math.max(side.width, 180), ink);
}

/** The legend: a bar of colours with ticks and what they measure. */
export function drawBar(
  into: SVGElement,
  colouring: Colouring,
  x: number,
  y: number,
  width: number,
  ink: Ink,
): void {
  const length = Math.min(width, 320);
  const pieces = 64;
  for (let k = 0; k < pieces; k++) {
    into.append(
      svg("rect", {
        x: x + (k * length) / pieces,
        y,
        width: length / pieces + 0.5,
        height: 8,
        fill: colouring.colour((k + 0.5) / pieces),
      }),
    );
  }
  for (const { t, label } of colouring.ticks) {
    const at = x + t * length;
    into.append(svg("line", { x1: at, x2: at, y1: y + 8, y2: y + 11, stroke: ink.muted }));
    const anchor = t < 0.04 ? "start" : t > 0.96 ? "end" : "middle";
    into.append(
      svg("text", { x: at, y: y + 21, "text-anchor": anchor, "font-size": 10, fill: ink.text }, label),
    );
  }
  into.append(
    svg("text", { x, y: y + 36, "font-size": 10.5, fill: ink.muted }, colouring.what),
  );
}

/** The size of numbers in cells, or 0 where they would not fit. */
function numberSize(heat: Heat, cell: number): number {
  const [row, lastRow] = heat.window.rows;
  const [column, lastColumn] = heat.window.columns;
  if (cell < 30 || (lastRow - row) * (lastColumn - column) > 400) return 0;
  let widest = 1;
  for (let i = row; i < lastRow; i++) {
    for (let j = column; j < lastColumn; j++) {
      const k = i * heat.n + j;
      if (heat.mask !== null && !heat.mask[k]) continue;
      widest = Math.max(widest, textWidth(heat.brief(heat.map[k]), 10));
    }
  }
  const size = Math.min(13, (10 * (cell - 6)) / widest);
  return size >= 8.5 ? size : 0;
}

/** The chosen row, column or pair, and numbers where cells have room for them. */
function drawMarks(into: SVGElement, heat: Heat, layout: Layout, ink: Ink): void {
  const { left, top, side, cell } = layout;
  const [row, lastRow] = heat.window.rows;
  const [column, lastColumn] = heat.window.columns;
  const { pin, pair } = heat;
  const size = numberSize(heat, cell);
  if (size > 0) {
    const numbers = svg("g", { class: "numbers", "pointer-events": "none" });
    for (let i = row; i < lastRow; i++) {
      for (let j = column; j < lastColumn; j++) {
        const k = i * heat.n + j;
        if (heat.mask !== null && !heat.mask[k]) continue;
        numbers.append(
          svg(
            "text",
            {
              x: left + (j - column + 0.5) * cell,
              y: top + (i - row + 0.5) * cell + size * 0.35,
              "text-anchor": "middle",
              "font-size": size,
              fill: readableOn(heat.colouring.colour(heat.colouring.at(k))),
            },
            heat.brief(heat.map[k]),
          ),
        );
      }
    }
    into.append(numbers);
  }
  if (pin !== null) {
    const across = pin.axis === "row";
    const from = (across ? pin.index - row : pin.index - column) * cell;
    const length = across ? side.height : side.width;
    const veil = (start: number, end: number) => {
      if (end <= start) return;
      into.append(
        svg("rect", {
          x: across ? left : left + start,
          y: across ? top + start : top,
          width: across ? side.width : end - start,
          height: across ? end - start : side.height,
          fill: ink.paper,
          opacity: 0.72,
        }),
      );
    };
    veil(0, Math.min(length, from));
    veil(Math.max(0, from + cell), length);
  }
  if (pair !== null) {
    const inside =
      pair.target >= row && pair.target < lastRow && pair.source >= column && pair.source < lastColumn;
    if (inside) {
      const size = Math.max(cell, 7);
      const x = left + (pair.source - column + 0.5) * cell - size / 2;
      const y = top + (pair.target - row + 0.5) * cell - size / 2;
      const box = { x, y, width: size, height: size, fill: "none", class: "pair-mark" };
      into.append(svg("rect", { ...box, stroke: ink.paper, "stroke-width": 4.5 }));
      into.append(svg("rect", { ...box, stroke: ink.accent, "stroke-width": 2.5 }));
    }
  }
}

export class HeatView {
  readonly el: HTMLElement;
  private readonly canvas = h("canvas", { "aria-hidden": "true" });
  private readonly overlay = svg("svg", { class: "overlay", role: "img", tabindex: 0 });
  private readonly marks = svg("g");
  private readonly hovering = svg("g", { "pointer-events": "none" });
  private heat: Heat | null = null;
  private layout: Layout | null = null;
  private cells: HTMLCanvasElement | null = null;
  private ink: Ink = LIGHT;
  private drag: { x: number; y: number; cell: Cell } | null = null;

  constructor(
    private readonly actions: HeatActions,
    name: string,
  ) {
    this.el = h("div", { class: "figure", "data-figure": name }, this.canvas, this.overlay);
    const overlay = this.overlay as unknown as HTMLElement;
    overlay.addEventListener("pointermove", (event) => this.move(event));
    overlay.addEventListener("pointerleave", () => this.leave());
    overlay.addEventListener("pointerdown", (event) => this.press(event));
    overlay.addEventListener("pointerup", (event) => this.release(event));
    overlay.addEventListener("dblclick", () => this.actions.zoom(null));
  }

  draw(heat: Heat, room: { width: number; height: number }, ink: Ink): void {
    this.heat = heat;
    this.ink = ink;
    this.layout = layoutOf(heat, room);
    this.cells = pixels(heat.colouring, heat.n, heat.mask, ink.absent);
    const { layout, canvas, overlay } = this;
    const { width, height } = layout;
    overlay.setAttribute("viewBox", `0 0 ${width} ${height}`);
    overlay.setAttribute("width", String(width));
    overlay.setAttribute("height", String(height));
    overlay.setAttribute("font-family", FONT);
    overlay.setAttribute("aria-label", this.description(heat));
    this.el.style.width = `${width}px`;
    this.el.style.height = `${height}px`;
    canvas.style.left = `${layout.left}px`;
    canvas.style.top = `${layout.top}px`;
    canvas.style.width = `${layout.side.width}px`;
    canvas.style.height = `${layout.side.height}px`;
    this.paint(canvas, Math.min(3, window.devicePixelRatio || 1));
    replace(overlay);
    drawFrame(overlay, heat, layout, ink);
    replace(this.marks);
    drawMarks(this.marks, heat, layout, ink);
    replace(this.hovering);
    overlay.append(this.marks, this.hovering);
  }

  /** The figure as SVG alone, on white. */
  saved(): SVGElement {
    const heat = this.heat as Heat;
    const light: Heat = { ...heat, colouring: heat.recolour(false) };
    const layout = this.layout as Layout;
    const { width, height } = layout;
    const caption = 18;
    const figure = svg("svg", {
      xmlns: "http://www.w3.org/2000/svg",
      viewBox: `-8 -8 ${width + 16} ${height + caption + 16}`,
      width: width + 16,
      height: height + caption + 16,
      "font-family": FONT,
    });
    const ground = { x: -8, y: -8, width: width + 16, height: height + caption + 16 };
    figure.append(svg("rect", { ...ground, fill: LIGHT.paper }));
    drawFrame(figure, light, layout, LIGHT);
    this.drawCells(figure, light, layout);
    drawMarks(figure, light, layout, LIGHT);
    figure.append(
      svg("text", { x: 0, y: height + 10, "font-size": 10, fill: LIGHT.muted }, heat.caption),
    );
    return figure;
  }

  /** Rectangles while they are few, else one picture. */
  private drawCells(into: SVGElement, heat: Heat, layout: Layout): void {
    const [row, lastRow] = heat.window.rows;
    const [column, lastColumn] = heat.window.columns;
    const { left, top, cell, side } = layout;
    const group = svg("g", { class: "cells", "shape-rendering": "crispEdges" });
    into.append(group);
    if ((lastRow - row) * (lastColumn - column) > 4096) {
      const kept = this.cells;
      this.cells = pixels(heat.colouring, heat.n, heat.mask, LIGHT.absent);
      const canvas = document.createElement("canvas");
      this.paint(canvas, Math.max(2, Math.ceil(1200 / side.width)));
      this.cells = kept;
      const place = { x: left, y: top, width: side.width, height: side.height };
      group.append(svg("image", { ...place, href: canvas.toDataURL("image/png") }));
      return;
    }
    for (let i = row; i < lastRow; i++) {
      for (let j = column; j < lastColumn; j++) {
        const k = i * heat.n + j;
        const allowed = heat.mask === null || heat.mask[k];
        group.append(
          svg("rect", {
            x: left + (j - column) * cell,
            y: top + (i - row) * cell,
            width: cell,
            height: cell,
            fill: allowed ? heat.colouring.colour(heat.colouring.at(k)) : LIGHT.absent,
          }),
        );
      }
    }
  }

  private paint(canvas: HTMLCanvasElement, density: number): void {
    const { window: shown } = this.heat as Heat;
    const { side, cell } = this.layout as Layout;
    canvas.width = Math.max(1, Math.round(side.width * density));
    canvas.height = Math.max(1, Math.round(side.height * density));
    const context = canvas.getContext("2d") as CanvasRenderingContext2D;
    // Where a cell is smaller than a pixel, neighbours are averaged rather than dropped.
    context.imageSmoothingEnabled = cell * density < 1;
    context.imageSmoothingQuality = "high";
    const [row, lastRow] = shown.rows;
    const [column, lastColumn] = shown.columns;
    context.drawImage(
      this.cells as HTMLCanvasElement,
      column,
      row,
      lastColumn - column,
      lastRow - row,
      0,
      0,
      canvas.width,
      canvas.height,
    );
    if (cell >= 14) {
      // A hair between large cells.
      context.strokeStyle = this.ink.paper;
      context.lineWidth = Math.max(1, density);
      context.beginPath();
      for (let k = 1; k < lastColumn - column; k++) {
        const x = Math.round(k * cell * density);
        context.moveTo(x, 0);
        context.lineTo(x, canvas.height);
      }
      for (let k = 1; k < lastRow - row; k++) {
        const y = Math.round(k * cell * density);
        context.moveTo(0, y);
        context.lineTo(canvas.width, y);
      }
      context.stroke();
    }
  }

  private description(heat: Heat): string {
    return (
      `${heat.title}: heat map, ${heat.n} targets (rows) by ${heat.n} sources (columns). ` +
      "Shift and arrow keys move from pair to pair, R pins the row, C the column."
    );
  }

  /** Where a pointer is: in a cell, or at the label of a row or a column. */
  private find(event: PointerEvent): { cell?: Cell; pin?: Pin } {
    const { heat, layout } = this;
    if (heat === null || layout === null) return {};
    const box = this.overlay.getBoundingClientRect();
    const scale = layout.width / box.width;
    const x = (event.clientX - box.left) * scale - layout.left;
    const y = (event.clientY - box.top) * scale - layout.top;
    const [row, lastRow] = heat.window.rows;
    const [column, lastColumn] = heat.window.columns;
    const target = row + Math.floor(y / layout.cell);
    const source = column + Math.floor(x / layout.cell);
    const inRows = target >= row && target < lastRow;
    const inColumns = source >= column && source < lastColumn;
    if (inRows && inColumns) return { cell: { target, source } };
    if (inRows && x < 0) return { pin: { axis: "row", index: target } };
    if (inColumns && y < 0 && y > -(layout.top - TITLE - AXIS)) {
      return { pin: { axis: "column", index: source } };
    }
    return {};
  }

  private move(event: PointerEvent): void {
    const { cell, pin } = this.find(event);
    const overlay = this.overlay as unknown as HTMLElement;
    overlay.style.cursor = cell ? "crosshair" : pin ? "pointer" : "default";
    if (this.drag !== null && cell !== undefined) this.band(this.drag.cell, cell);
    else this.cross(cell ?? null);
    this.actions.hover(cell ?? null, event);
  }

  private leave(): void {
    replace(this.hovering);
    this.drag = null;
    this.actions.hover(null, null);
  }

  private press(event: PointerEvent): void {
    const { cell } = this.find(event);
    if (cell !== undefined && event.button === 0) {
      this.drag = { x: event.clientX, y: event.clientY, cell };
    }
  }

  private release(event: PointerEvent): void {
    const { cell, pin } = this.find(event);
    const start = this.drag;
    this.drag = null;
    if (pin !== undefined && start === null) return this.actions.pin(pin);
    if (start === null || cell === undefined) return;
    const far = Math.hypot(event.clientX - start.x, event.clientY - start.y) > 12;
    const wide = Math.abs(cell.target - start.cell.target) >= 1;
    if (!far || !wide || cell.source === start.cell.source) {
      return this.actions.pair(cell);
    }
    const span = (a: number, b: number): [number, number] => [Math.min(a, b), Math.max(a, b) + 1];
    this.actions.zoom({
      rows: span(start.cell.target, cell.target),
      columns: span(start.cell.source, cell.source),
    });
  }

  /** Outlines of the row and the column of a cell. */
  cross(cell: Cell | null): void {
    const { heat, layout, ink } = this;
    replace(this.hovering);
    if (cell === null || heat === null || layout === null) return;
    const x = layout.left + (cell.source - heat.window.columns[0]) * layout.cell;
    const y = layout.top + (cell.target - heat.window.rows[0]) * layout.cell;
    const line = { fill: "none", stroke: ink.text, "stroke-opacity": 0.7 };
    const { side, cell: size } = layout;
    this.hovering.append(
      svg("rect", { ...line, x: layout.left, y, width: side.width, height: size }),
      svg("rect", { ...line, x, y: layout.top, width: size, height: side.height }),
    );
  }

  private band(from: Cell, to: Cell): void {
    const { heat, layout, ink } = this;
    if (heat === null || layout === null) return;
    const { cell } = layout;
    const column = Math.min(from.source, to.source) - heat.window.columns[0];
    const row = Math.min(from.target, to.target) - heat.window.rows[0];
    replace(
      this.hovering,
      svg("rect", {
        x: layout.left + column * cell,
        y: layout.top + row * cell,
        width: (Math.abs(from.source - to.source) + 1) * cell,
        height: (Math.abs(from.target - to.target) + 1) * cell,
        fill: ink.accent,
        "fill-opacity": 0.15,
        stroke: ink.accent,
      }),
    );
  }
}
