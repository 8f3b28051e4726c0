// A row or a column of a map over the picture whose patches are the tokens.

import { LIGHT, number, PATCHES, rgb, sequential, type Colouring, type Ink } from "./colours";
import { h, replace, svg } from "./dom";
import { addCaption, barRoom, drawBar, fittingSize, FONT } from "./figure";
import type { Cell, Pin } from "./heatframe";
import { bars } from "./mapview";
import type { Mask } from "./measures";
import { beside, drawnPicture, lineOf, meeting, MIDDLE, patchesOf, patchName, type Drawn, type Patches } from "./patches";
import type { Row } from "./save";
import { scaleEnd, type Pairs } from "./scale";
import { scopeWords, unit } from "./scopes";
import type { Shown } from "./shown";
import { layerWords } from "./stacks";
import type { Context, Panel } from "./view";

const TITLE = 42; // room above the picture
const TALLEST = 560; // pixels of the picture
const SHORTEST = 320;
const AROUND = 440; // pixels of a window that other things take
const NARROWEST = 300; // pixels of the figure
const COVER = 0.62; // how much of a patch's colour covers the picture
const LISTED = 12;

/** What is drawn: the line of one token, at the patches. */
interface Overlay {
  patches: Patches;
  picture: Drawn | null;
  token: number;
  direction: Pin["axis"];
  map: Float32Array; // whole, [target, source]
  mask: Mask;
  values: Float32Array; // at the patches
  seen: Mask;
  labels: string[];
  colouring: (dark: boolean) => Colouring;
  title: string;
}

interface Layout {
  width: number;
  height: number;
  side: { width: number; height: number }; // of the picture
}

export class PictureView implements Panel {
  readonly el: HTMLElement;
  private readonly figure = h("div", { class: "figure", "data-figure": "picture" });
  private readonly canvas = svg("svg", { class: "overlay", role: "img", tabindex: 0 });
  private readonly others = h("div", { class: "tokens", role: "group", "aria-label": "Tokens that are no patches" });
  private readonly aside = h("aside", { class: "aside", "aria-label": "Details" });
  private shown: Shown | null = null;
  private overlay: Overlay | null = null;

  constructor(private readonly context: Context) {
    this.figure.append(this.canvas);
    const canvas = this.canvas as unknown as HTMLElement;
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => context.tooltip(null, null));
    canvas.addEventListener("click", (event) => {
      const token = tokenAt(event);
      if (token !== null) this.choose(token);
    });
    this.el = h("div", { class: "mapview" }, h("div", { class: "stage" }, this.figure, this.others), this.aside);
  }

  /** The line that is shown, for the name of a file. */
  get name(): string {
    const { overlay } = this;
    return overlay === null ? "picture" : `${overlay.direction}-${overlay.labels[overlay.token]}`;
  }

  /** Shows the row or the column of the token that is chosen. */
  turn(direction: Pin["axis"]): void {
    const { pin } = this.context.state;
    this.context.update({ direction, pin: pin && { axis: direction, index: pin.index } });
  }

  /** Chooses the patch above, below or beside the chosen one. */
  move(arrow: [number, number]): void {
    const { overlay } = this;
    if (overlay === null) return;
    const token = beside(overlay.patches, overlay.token, arrow);
    this.choose(token);
    this.context.say(whatIs({ ...overlay, token }));
  }

  async render(): Promise<void> {
    const { context } = this;
    const { state, ink } = context;
    const shown = context.shown(state);
    const patches = patchesOf(shown);
    if (patches === null) throw new Error("not all patches of the picture are shown; the map has those that are");
    const { header } = shown.item;
    const width = shown.columns.size;
    const { direction } = state;
    const token = state.pin?.index ?? 0;
    const map = await shown.normalised(state.scope, state.layer, state.norm);
    const mask = shown.mask(state.layer, state.scope);
    const { values, mask: seen } = lineOf({ map, mask, width }, patches, token, direction);
    const top = await this.top(shown, patches, token);
    const picture = await drawnPicture(shown.item);
    if (context.stale()) return;
    const { scale, palette, diagonal } = state;
    const reach = { map: "", layer: ", shared by this layer’s maps", all: ", shared by all layers’ maps" }[state.range];
    const pairs: Pairs = { mask: seen, same: ownPatch(patches, token), diagonal };
    const what = unit(state.scope, state.norm, header.provenance);
    this.shown = shown;
    this.overlay = {
      patches, picture, token, direction, map, mask, values, seen,
      labels: shown.rows.labels,
      colouring: (dark) => sequential(values, pairs, { scale, palette, top, what, dark, reach, nouns: PATCHES }),
      title: `${scopeWords(state.scope)[state.names === "papers" ? 1 : 0]}, ${layerWords(header, header.layers[state.layer])}`,
    };
    this.drawOnPage(this.overlay, ink);
    this.renderOthers(this.overlay, width);
    this.renderAside(this.overlay, width);
  }

  async saved(): Promise<SVGElement> {
    const overlay = this.overlay as Overlay;
    const layout = this.layout(overlay);
    const { patches, labels, direction, token, map } = overlay;
    const columns = (this.shown as Shown).columns.size;
    const width = layout.width + 16;
    const height = layout.height + 32;
    const figure = svg("svg", {
      xmlns: "http://www.w3.org/2000/svg", viewBox: `-8 -8 ${width} ${height}`, width, height, "font-family": FONT,
    });
    figure.append(svg("rect", { x: -8, y: -8, width, height, fill: LIGHT.paper }));
    draw(figure, overlay, layout, LIGHT);
    const beyond = patches.others.map((other) => `${labels[other]} ${number(map[meeting(columns, token, direction, other)])}`);
    const line = (y: number, text: string) =>
      figure.append(svg("text", { x: 0, y, "font-size": fittingSize(text, 10.5, layout.width), fill: LIGHT.muted }, text));
    line(layout.height + 12, beyond.slice(0, 6).join(" · "));
    addCaption(figure, this.context.caption, LIGHT);
    return figure;
  }

  /** The line's pairs; patches with their row and column, counted from 1. */
  async table(): Promise<Row[]> {
    const { overlay, shown } = this;
    if (overlay === null || shown === null) return [];
    const { state } = this.context;
    const { patches, token, direction, labels, map } = overlay;
    const rows: Row[] = [
      ["scope", "layer", "target", "target_token", "source", "source_token", "patch_row", "patch_column", "value"],
    ];
    for (let other = 0; other < labels.length; other++) {
      const [target, source] = direction === "row" ? [token, other] : [other, token];
      const place = patches.tokens.indexOf(other);
      const at = place < 0 ? ["", ""] : [Math.floor(place / patches.columns) + 1, (place % patches.columns) + 1];
      rows.push([
        state.scope, shown.layers[state.layer], target, labels[target], source, labels[source], ...at,
        map[meeting(shown.columns.size, token, direction, other)],
      ]);
    }
    return rows;
  }

  describe(cell: Cell): string {
    const { overlay } = this;
    return overlay === null ? "" : this.lines(overlay.direction === "row" ? cell.source : cell.target).join(", ");
  }

  private choose(index: number): void {
    this.context.update({ pin: { axis: this.context.state.direction, index }, pair: null });
  }

  /** Where the scale of this line ends, or that of the maps that share it: i = j is the token’s own patch. */
  private async top(shown: Shown, patches: Patches, token: number): Promise<number> {
    const { scope, layer, norm, range, direction, scale, diagonal } = this.context.state;
    const alone = range === "map";
    // Weights and norms are different quantities, so they do not share a scale.
    const scopes = alone ? [scope] : shown.scopes.filter((name) => name.endsWith(scope.slice(-2)));
    const same = ownPatch(patches, token);
    let top = 0;
    for (const k of range === "all" ? shown.layers.keys() : [layer]) {
      for (const name of scopes) {
        const map = await shown.normalised(name, k, norm);
        const line = lineOf({ map, mask: shown.mask(k, name), width: shown.columns.size }, patches, token, direction);
        top = Math.max(top, scaleEnd(line.values, { mask: line.mask, same, diagonal }, scale));
      }
    }
    return top;
  }

  private layout(overlay: Overlay): Layout {
    const { patches, picture } = overlay;
    const { width: page } = this.context.room();
    const room = page > 860 ? page - 300 : page;
    const ratio = picture === null ? patches.columns / patches.rows : picture.width / picture.height;
    const tallest = Math.max(SHORTEST, Math.min(TALLEST, window.innerHeight - AROUND));
    const width = Math.min(room, tallest * ratio);
    const side = { width, height: width / ratio };
    const wide = Math.max(side.width, Math.min(room, NARROWEST));
    return { width: wide, height: TITLE + side.height + 16 + barRoom(overlay.colouring(false), wide), side };
  }

  private drawOnPage(overlay: Overlay, ink: Ink): void {
    const { canvas } = this;
    const layout = this.layout(overlay);
    const { width, height } = layout;
    const { rows, columns } = overlay.patches;
    const attributes = {
      viewBox: `0 0 ${width} ${height}`, width, height, "font-family": FONT,
      "aria-label": `${overlay.title}: ${whatIs(overlay)}, ${rows} by ${columns} patches. Arrow keys move the chosen patch.`,
    };
    for (const [name, value] of Object.entries(attributes)) canvas.setAttribute(name, String(value));
    this.figure.style.width = `${width}px`;
    this.figure.style.height = `${height}px`;
    Object.assign(this.figure.dataset, { token: overlay.token, direction: overlay.direction });
    replace(canvas);
    draw(canvas, overlay, layout, ink);
  }

  /** Buttons stay the same while they can, so that the keyboard's focus stays on them. */
  private renderOthers({ patches, labels, token, direction, map }: Overlay, width: number): void {
    const { others } = patches;
    this.others.hidden = others.length === 0;
    const key = others.map((other) => `${other} ${labels[other]}`).join();
    if (this.others.dataset.shown !== key) {
      this.others.dataset.shown = key;
      replace(this.others, ...others.map((other) => this.otherButton(other, labels[other])));
    }
    [...this.others.children].forEach((button, k) => {
      button.setAttribute("aria-pressed", String(others[k] === token));
      const value = button.querySelector(".share") as HTMLElement;
      value.textContent = number(map[meeting(width, token, direction, others[k])]);
    });
  }

  private otherButton(token: number, label: string): HTMLElement {
    return h(
      "button",
      {
        type: "button", class: "token special", "data-token": token, onclick: () => this.choose(token),
        title: `${label} is no patch; its value stands below its name`,
      },
      h("span", { class: "text" }, label),
      h("span", { class: "share" }),
    );
  }

  private renderAside(overlay: Overlay, width: number): void {
    const { labels, token, direction, map, mask, patches, picture } = overlay;
    const entries = labels
      .map((label, other) => ({ label, other, k: meeting(width, token, direction, other) }))
      .filter(({ k }) => mask === null || mask[k])
      .sort((a, b) => map[b.k] - map[a.k]);
    const name = patchName(patches, labels, token);
    replace(
      this.aside,
      h("h3", {}, direction === "row" ? `What ${name} receives` : `What ${name} gives`),
      h("p", { class: "note" }, `${direction} of ${name}: its ${direction === "row" ? "sources" : "targets"}, the largest first`),
      bars(entries.slice(0, LISTED).map(({ label, other, k }) => ({ label, value: map[k], go: () => this.choose(other) }))),
      h("p", { class: "note" }, "Click a patch or move with the arrow keys; patches are called by row and column, from 1."),
      picture && h("h4", {}, "The picture that the model saw"),
      picture && h("img", { class: "seen", src: picture.plain, alt: "The picture, after resizing and cropping", width: 160 }),
      !picture && h("p", { class: "note" }, "The picture is not known: pixel values came without a processor that explains them."),
    );
  }

  private lines(other: number): string[] {
    const { overlay, shown } = this;
    if (overlay === null || shown === null) return [];
    const { patches, labels, token, direction, map, mask } = overlay;
    const { scope, norm } = this.context.state;
    const k = meeting(shown.columns.size, token, direction, other);
    const [target, source] = direction === "row" ? [token, other] : [other, token];
    const value = mask === null || mask[k] ? number(map[k]) : "no attention";
    return [
      `source ${patchName(patches, labels, source)}`,
      `target ${patchName(patches, labels, target)}`,
      `${unit(scope, norm, shown.item.header.provenance)}: ${value}`,
    ];
  }

  private hover(event: PointerEvent): void {
    const token = tokenAt(event);
    this.context.tooltip(token === null ? null : this.lines(token), event);
  }
}

/** Which patch is the token itself, whose own part is often a hundred times that of the others. */
function ownPatch({ tokens }: Patches, token: number): Uint8Array {
  return Uint8Array.from(tokens, (other) => Number(other === token));
}

function tokenAt(event: Event): number | null {
  const { token } = (event.target as SVGElement).dataset;
  return token === undefined ? null : Number(token);
}

function whatIs({ patches, labels, token, direction }: Pick<Overlay, "patches" | "labels" | "token" | "direction">): string {
  const name = patchName(patches, labels, token);
  return direction === "row" ? `what ${name} receives from each patch` : `what each patch receives from ${name}`;
}

/** The colours of the bar as they look on a picture of a middling grey. */
function covering(colouring: Colouring, picture: Drawn | null): Colouring {
  if (picture === null) return colouring;
  const mixed = (t: number) => rgb(colouring.colour(t)).map((part) => Math.round(COVER * part + (1 - COVER) * MIDDLE));
  return { ...colouring, colour: (t) => `rgb(${mixed(t).join(",")})` };
}

function draw(into: SVGElement, overlay: Overlay, layout: Layout, ink: Ink): void {
  const { patches, picture, values, seen, token, labels, title } = overlay;
  const { side, width } = layout;
  const words = (y: number, text: string, size: number, more: Record<string, unknown>) =>
    into.append(svg("text", { x: 0, y, "font-size": fittingSize(text, size, width), ...more }, text));
  words(14, title, 14, { fill: ink.text, "font-weight": 650 });
  words(32, whatIs(overlay), 12.5, { fill: ink.text, class: "what" });
  const place = { x: 0, y: TITLE, ...side };
  if (picture !== null) into.append(svg("image", { ...place, href: picture.grey, preserveAspectRatio: "none" }));
  const colouring = overlay.colouring(ink.dark);
  const cell = { width: side.width / patches.columns, height: side.height / patches.rows };
  const at = (k: number) => ({
    x: (k % patches.columns) * cell.width,
    y: TITLE + Math.floor(k / patches.columns) * cell.height,
    ...cell,
  });
  const cells = svg("g", { class: "patches", "shape-rendering": "crispEdges" });
  patches.tokens.forEach((other, k) => {
    const missing = seen !== null && !seen[k];
    const fill = missing ? ink.absent : colouring.colour(colouring.at(k));
    cells.append(
      svg("rect", {
        ...at(k), class: "patch pick", fill, "fill-opacity": picture === null ? 1 : COVER,
        "data-token": other, "data-patch": labels[other], "data-value": values[k],
      }),
    );
  });
  into.append(cells, svg("rect", { ...place, fill: "none", stroke: ink.line, "pointer-events": "none" }));
  const chosen = patches.tokens.indexOf(token);
  if (chosen >= 0) {
    const box = { ...at(chosen), fill: "none", "pointer-events": "none" };
    into.append(
      svg("rect", { ...box, stroke: ink.paper, "stroke-width": 4.5 }),
      svg("rect", { ...box, stroke: ink.accent, "stroke-width": 2.5, class: "chosen", "data-patch": labels[token] }),
    );
  }
  drawBar(into, covering(colouring, picture), 0, TITLE + side.height + 12, width, ink);
}
