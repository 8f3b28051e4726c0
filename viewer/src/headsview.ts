// The attention of a layer head by head, as small maps; a click opens one of them large.

import { isolate } from "./bidi";
import { LIGHT, number, pixels, sequential, type Colouring, type Ink } from "./colours";
import { buttons, h, pause, replace, svg } from "./dom";
import { addCaption, cut, FONT, drawBar } from "./figure";
import type { Cell } from "./heatframe";
import type { Row } from "./save";
import { beyondWord, SCALE_WORDS, scaleEnd } from "./scale";
import { headScope, headUnit } from "./scopes";
import type { Look, Shown } from "./shown";
import { layerWords } from "./stacks";
import type { State } from "./state";
import type { Context, Panel } from "./view";

const HOW =
  "These maps have no single heads. Ask for them: lens.maps(text, heads=True) in Python, " +
  "normlens map --heads on the command line.";

const AXES = "Rows are targets i (outputs), columns sources j (inputs).";

/** A head’s small map. */
interface Small {
  layer: number;
  head: number;
  map: Float32Array;
  end: number;
  canvas: HTMLCanvasElement;
  caption: HTMLElement;
}

const SIDE = 64; // pixels of tokens’ names, beside the rows
const LINE = 11; // pixels of a name

/** The places of the names that there is room for along so many pixels. */
function named(count: number, pixels: number): number[] {
  const every = Math.max(1, Math.ceil((LINE * count) / pixels));
  return Array.from({ length: Math.ceil(count / every) }, (_, k) => k * every);
}

/** The names along one edge of a small map, as many as there is room for. */
function names(shown: Shown, axis: "rows" | "columns", pixels: number): HTMLElement {
  const { labels, size } = shown[axis];
  const places = named(size, pixels);
  const each = places.map((place) => h("span", { title: labels[place] }, labels[place]));
  const box = h("span", { class: `names ${axis}` }, ...each);
  const length = axis === "rows" ? "height" : "width";
  box.style[length] = `${pixels}px`;
  for (const one of each) {
    one.style[length] = `${((places[1] ?? size) * pixels) / size}px`;
    one.style.lineHeight = `${pixels / size}px`; // a name is in the middle of its row or column
  }
  return box;
}

/** The end of the scale that the heads of some layers share. */
export async function headsEnd(shown: Shown, scope: string, layers: number[], look: Look): Promise<number> {
  let end = 0;
  for (const layer of layers) {
    const pairs = shown.pairs(layer, scope, look.diagonal);
    for (let head = 0; head < shown.heads(scope, layer); head++) {
      end = Math.max(end, scaleEnd(await shown.head(scope, layer, head, look.norm), pairs, look.scale));
    }
  }
  return end;
}

export class HeadsView implements Panel {
  readonly el: HTMLElement;
  private readonly choice = h("div", { class: "toolbar tight" });
  private readonly note = h("p", { class: "note", "data-role": "heads" });
  private readonly grid = h("div", { class: "multiples heads", "data-figure": "heads" });
  private readonly key = h("div", { class: "key" });
  private readonly layers;
  private small: Small[] = [];
  private scope = "";

  constructor(private readonly context: Context) {
    this.layers = buttons<State["layers"]>(
      "Layers",
      [
        { value: "one", label: "this one" },
        { value: "all", label: "all", title: "Rows are layers, columns heads" },
      ],
      (layers) => context.update({ layers }),
      "layers",
    );
    this.el = h("div", { class: "overview" }, this.choice, this.note, this.grid, this.key);
  }

  async render(): Promise<void> {
    const { context } = this;
    const { state, ink } = context;
    const shown = context.shown(state);
    const scopes = shown.scopes.filter((scope) => headScope(scope) in shown.item.header.heads);
    this.scope = scopes.includes(state.scope) ? state.scope : (scopes.find((scope) => scope.endsWith("-N")) ?? scopes[0] ?? "");
    this.renderChoice(scopes);
    const layers = state.layers === "all" ? [...shown.layers.keys()] : [state.layer];
    const having = layers.filter((layer) => shown.heads(this.scope, layer) > 0);
    this.grid.hidden = this.key.hidden = having.length === 0;
    if (having.length === 0) {
      this.small = [];
      const left = shown.item.header.left_out.find((sentence) => sentence.startsWith("Single heads are left out"));
      this.sayWhyNot(scopes.length > 0 ? "This layer’s heads are not in the file; the maps file has them." : (left ?? null));
      return;
    }
    await this.renderGrid(shown, having, ink);
  }

  /** Says why there are no heads, and how to get them. */
  private sayWhyNot(reason: string | null): void {
    const { askForHeads } = this.context;
    if (reason !== null || askForHeads === null) return replace(this.note, reason ?? HOW);
    replace(
      this.note,
      "These maps were computed without single heads. ",
      h("button", { type: "button", "data-action": "heads", onclick: askForHeads }, "Compute the heads of this text"),
    );
  }

  /** Small maps, drawn one after the other so that the page stays alive. */
  private async renderGrid(shown: Shown, layers: number[], ink: Ink): Promise<void> {
    const { context, scope } = this;
    const { state } = context;
    const several = state.layers === "all";
    const most = Math.max(...layers.map((layer) => shown.heads(scope, layer)));
    const room = context.room().width - 40;
    const shape = Math.max(0.25, Math.min(2, shown.rows.size / shown.columns.size));
    // Many maps have names on the outer edge alone.
    const size = several
      ? Math.max(44, Math.min(110, Math.floor((room - SIDE) / most) - 8))
      : room < 500 ? Math.max(96, (room - 24) / 2 - SIDE) : 190;
    const { header } = shown.item;
    this.small = layers.flatMap((layer) =>
      Array.from({ length: shown.heads(scope, layer) }, (_, head): Small => {
        const canvas = h("canvas", { width: shown.columns.size, height: shown.rows.size });
        canvas.style.width = `${size}px`;
        canvas.style.height = `${size * shape}px`;
        return { layer, head, map: new Float32Array(), end: 1, canvas, caption: h("span", { class: "caption" }) };
      }),
    );
    const button = ({ layer, head, canvas, caption }: Small) => {
      const words = `${scope}, ${layerWords(header, header.layers[layer])}, head ${head}`;
      this.explain(canvas, shown, () => this.small.find((each) => each.canvas === canvas), words);
      return h(
        "button",
        {
          type: "button", "data-head": `${header.layers[layer]}:${head}`, "aria-label": `Open ${words}`,
          onclick: () => context.update({ layer, scope, head, view: "map" }),
        },
        !several && h("span", { class: "caption strong" }, `head ${head}`),
        several
          ? canvas
          : h("span", { class: "labelled" }, h("span", {}), names(shown, "columns", size), names(shown, "rows", size * shape), canvas),
        !several && caption,
      );
    };
    const row = (layer: number) => this.small.filter((each) => each.layer === layer).map(button);
    this.grid.style.gridTemplateColumns = several ? `auto repeat(${most}, ${size}px)` : `repeat(auto-fill, ${size + SIDE}px)`;
    const head = (text: string) => h("span", { class: "head" }, text, names(shown, "columns", size));
    const side = (layer: number) =>
      h("span", { class: "side labelled" }, String(header.layers[layer]), names(shown, "rows", size * shape));
    replace(
      this.grid,
      ...(several ? [h("span", {}), ...Array.from({ length: most }, (_, k) => head(`head ${k}`))] : []),
      ...layers.flatMap((layer) => [several && side(layer), ...row(layer)]),
    );
    const shared = state.range === "map" || state.scale === "rank" ? null : await this.sharedEnds(shown, layers);
    let since = performance.now();
    for (const each of this.small) {
      each.map = await shown.head(scope, each.layer, each.head, state.norm);
      if (context.stale()) return;
      const pairs = shown.pairs(each.layer, scope, state.diagonal);
      each.end = shared?.get(each.layer) ?? scaleEnd(each.map, pairs, state.scale);
      const colours = this.colouring(shown, each, ink.dark);
      const picture = pixels(colours, { rows: shown.rows.size, columns: shown.columns.size }, pairs.mask, ink.absent);
      each.canvas.getContext("2d")?.drawImage(picture, 0, 0);
      const largest = each.map.reduce((a, b) => (b > a ? b : a), 0);
      each.caption.textContent = `largest ${number(largest)}`;
      if (performance.now() - since > 30) {
        await pause();
        since = performance.now();
      }
    }
    this.renderKey(shown, ink);
  }

  async saved(): Promise<SVGElement> {
    const { small, scope } = this;
    if (small.length === 0) throw new Error("there are no heads to save");
    const shown = this.context.shown(this.context.state);
    const { header } = shown.item;
    const layers = [...new Set(small.map(({ layer }) => layer))];
    const several = this.context.state.layers === "all";
    const columns = several ? Math.max(...small.map(({ head }) => head)) + 1 : Math.min(4, small.length);
    const size = several ? 90 : 200;
    const high = Math.round(size * Math.max(0.25, Math.min(2, shown.rows.size / shown.columns.size)));
    const [left, top, gap] = [several ? 104 : 72, 60, several ? 6 : 26];
    const rows = several ? layers.length : Math.ceil(small.length / columns);
    const [width, height] = [left + columns * (size + 8) + 8, top + rows * (high + gap) + 96 + SIDE];
    const figure = svg("svg", {
      xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT,
    });
    figure.append(svg("rect", { width, height, fill: LIGHT.paper }));
    const words = (x: number, y: number, text: string, more: Record<string, unknown> = {}) =>
      figure.append(svg("text", { x, y, "font-size": 10.5, fill: LIGHT.text, ...more }, text));
    const which = several ? "all layers (rows)" : layerWords(header, header.layers[layers[0]]);
    words(8, 20, `${header.model}: heads of ${scope}, ${which}`, { "font-size": 14, "font-weight": 650 });
    words(8, 35, AXES, { fill: LIGHT.muted });
    small.forEach((each, k) => {
      const [column, row] = several ? [each.head, layers.indexOf(each.layer)] : [k % columns, Math.floor(k / columns)];
      const [x, y] = [left + column * (size + 8), top + row * (high + gap)];
      if (!several || row === 0) words(x, y - 5, `head ${each.head}`);
      if (several && column === 0) words(20, y + high / 2 + 4, String(header.layers[each.layer]), { "text-anchor": "end" });
      // Names of tokens on the outer edge.
      const token = (place: string, text: string) =>
        words(0, 0, cut(text, 10), { "font-size": 9, fill: LIGHT.muted, "text-anchor": "end", transform: place });
      if (column === 0) {
        const tall = high / shown.rows.size;
        for (const i of named(shown.rows.size, high)) token(`translate(${x - 4} ${y + (i + 0.5) * tall + 3})`, shown.rows.labels[i]);
      }
      if (k + columns >= small.length) {
        const wide = size / shown.columns.size;
        for (const j of named(shown.columns.size, size)) {
          token(`translate(${x + (j + 0.5) * wide + 3} ${y + high + 4}) rotate(-90)`, shown.columns.labels[j]);
        }
      }
      const pairs = shown.pairs(each.layer, scope, this.context.state.diagonal);
      const picture = pixels(
        this.colouring(shown, each, false), { rows: shown.rows.size, columns: shown.columns.size }, pairs.mask, LIGHT.absent,
      );
      const large = document.createElement("canvas");
      [large.width, large.height] = [Math.max(2 * size, picture.width), Math.max(2 * high, picture.height)];
      const context = large.getContext("2d") as CanvasRenderingContext2D;
      context.imageSmoothingEnabled = false;
      context.drawImage(picture, 0, 0, large.width, large.height);
      figure.append(svg("image", { x, y, width: size, height: high, preserveAspectRatio: "none", href: large.toDataURL() }));
    });
    drawBar(figure, this.bar(shown, false), left, height - 82, 300, LIGHT);
    addCaption(figure, this.context.caption, LIGHT);
    return figure;
  }

  /** Every pair of every head that is shown. */
  async table(): Promise<Row[]> {
    const shown = this.context.shown(this.context.state);
    const rows: Row[] = [["scope", "layer", "head", "target", "target_token", "source", "source_token", "value"]];
    const width = shown.columns.size;
    for (const { layer, head, map } of this.small) {
      map.forEach((value, k) => {
        const [target, source] = [Math.floor(k / width), k % width];
        rows.push([
          this.scope, shown.layers[layer], head, target, shown.rows.labels[target], source, shown.columns.labels[source], value,
        ]);
      });
    }
    return rows;
  }

  describe(_cell: Cell): string {
    return "";
  }

  /** Says which pair of a small map the pointer is at. */
  private explain(canvas: HTMLCanvasElement, shown: Shown, small: () => Small | undefined, words: string): void {
    canvas.addEventListener("pointerleave", () => this.context.tooltip(null, null));
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const place = (at: number, size: number, count: number) => Math.max(0, Math.min(count - 1, Math.floor((at / size) * count)));
      const source = place(event.clientX - box.left, box.width, shown.columns.size);
      const target = place(event.clientY - box.top, box.height, shown.rows.size);
      const map = small()?.map;
      if (map === undefined || map.length === 0) return;
      this.context.tooltip(
        [
          words,
          `source ${isolate(shown.columns.labels[source])} → target ${isolate(shown.rows.labels[target])}`,
          number(map[target * shown.columns.size + source]),
        ],
        event,
      );
    });
  }

  private renderChoice(scopes: string[]): void {
    const { context } = this;
    const { state } = context;
    const of = buttons<string>(
      "Heads of",
      scopes.map((scope) => ({ value: scope, label: headScope(scope) })),
      (scope) => context.update({ scope }),
      "heads-of",
    );
    of.set(this.scope);
    this.layers.set(state.layers);
    replace(this.choice, scopes.length > 0 && of.el, scopes.length > 0 && this.layers.el);
  }

  private async sharedEnds(shown: Shown, layers: number[]): Promise<Map<number, number>> {
    const { state } = this.context;
    const ends = new Map<number, number>();
    for (const layer of layers) ends.set(layer, await headsEnd(shown, this.scope, [layer], state));
    const all = Math.max(...ends.values());
    if (state.range === "all") for (const layer of layers) ends.set(layer, all);
    return ends;
  }

  private colouring(shown: Shown, { layer, map, end }: Small, dark: boolean): Colouring {
    const { scale, palette, diagonal } = this.context.state;
    return sequential(map, shown.pairs(layer, this.scope, diagonal), { scale, palette, top: end, what: "", dark });
  }

  /** The bar of all small maps, whose scales end at different values. */
  private bar(shown: Shown, dark: boolean): Colouring {
    const { state } = this.context;
    const first = this.colouring(shown, this.small[0], dark);
    const what = headUnit(this.scope, state.norm, shown.item.header.provenance, true);
    const whose = { map: "each head on its own", layer: "the heads of a layer on one", all: "all heads on one" }[state.range];
    const beyond = this.small.some(({ map, end, layer }) => {
      const pairs = shown.pairs(layer, this.scope, state.diagonal);
      return state.scale === "clipped" && scaleEnd(map, pairs, "linear") > end;
    });
    const ticks = [{ t: 0, label: "0" }, { t: 1, label: "end of the scale" }];
    const over = beyond ? `; ${beyondWord(state.palette)}: beyond its end` : "";
    return { ...first, ticks, what, scale: `${whose} ${SCALE_WORDS[state.scale]}${over}`, beyond };
  }

  private renderKey(shown: Shown, ink: Ink): void {
    const { header } = shown.item;
    const error = header.precision.head_relative_error;
    const kept = header.precision.head_bits === 32 ? "" : ` Heads are kept to ±${(100 * error).toPrecision(1)} % (${header.precision.head_bits} bits).`;
    this.note.textContent = `${AXES} Click a head to enlarge it; in the map, “Head” chooses one, or all together.${kept}`;
    const figure = svg("svg", { width: 340, height: 84, viewBox: "0 0 340 84", "font-family": FONT, role: "img", "aria-label": "Colours" });
    drawBar(figure, this.bar(shown, ink.dark), 2, 6, 320, ink);
    replace(this.key, figure);
  }
}
