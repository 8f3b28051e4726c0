// All layers and scopes as small maps; similarity of scopes; mixing ratios of tokens.

import { interpolateCividis, interpolateViridis } from "d3-scale-chromatic";

import { LIGHT, pixels, sequential } from "./colours";
import { h, list, pause, replace, svg } from "./dom";
import { addCaption, FONT, fittingSize } from "./figure";
import { gridFigure, type Grid } from "./gridfigure";
import type { Cell } from "./heatframe";
import { linesFigure, type Chart } from "./lines";
import { beyondWord, SCALE_WORDS, scaleEnd } from "./scale";
import type { Row } from "./save";
import { shortName, steps } from "./scopes";
import type { Shown } from "./shown";
import { layerWords } from "./stacks";
import type { State } from "./state";
import type { Context, Panel } from "./view";

export class OverviewView implements Panel {
  readonly el: HTMLElement;
  private readonly maps = h("div", { class: "multiples", "data-figure": "overview" });
  private readonly note = h("p", { class: "note", "data-role": "scale" });
  private readonly changes = h("div", { class: "scrolled", "data-figure": "changes" });
  private chart: Chart | null = null;
  private readonly similarity = h("div", { class: "panels", "data-figure": "similarity" });
  private readonly mixingChoice;
  private readonly mixing = h("div", { class: "scrolled", "data-figure": "mixing" });
  private mixingScope = "";
  private grids: Grid[] = [];
  private mixingGrid: Grid | null = null;
  private thumbs = new Map<string, HTMLCanvasElement>();
  private drawn = "";
  private means: { key: string; values: Promise<number[][]> } | null = null;

  constructor(private readonly context: Context) {
    this.mixingChoice = list("Scope", (scope) => {
      this.mixingScope = scope;
      context.update({});
    }, "mixing-scope");
    this.el = h(
      "div",
      { class: "overview" },
      h("h3", {}, "Every layer and scope"),
      this.note,
      this.maps,
      h("h3", {}, "What each component changes"),
      this.changes,
      h("h3", {}, "How alike the scopes are"),
      this.similarity,
      h("div", { class: "toolbar" }, h("h3", {}, "Mixing ratio"), this.mixingChoice.el),
      h("p", { class: "note" }, "How much of each token’s vector the other tokens supplied."),
      this.mixing,
    );
  }

  async render(): Promise<void> {
    const { state } = this.context;
    const shown = this.context.shown(state);
    await this.renderMaps(shown);
    if (this.context.stale()) return;
    await this.renderChanges(shown);
    if (this.context.stale()) return;
    await this.renderSimilarity(shown);
    if (this.context.stale()) return;
    await this.renderMixing(shown);
  }

  async saved(): Promise<SVGElement> {
    const lines = this.chart === null ? [] : [linesFigure(this.chart, LIGHT)];
    const parts = [this.savedMaps(), ...lines, ...this.grids.map((grid) => gridFigure(grid, LIGHT))];
    if (this.mixingGrid !== null) parts.push(gridFigure(this.mixingGrid, LIGHT));
    return below(parts, this.context.caption);
  }

  async table(): Promise<Row[]> {
    const { state } = this.context;
    const shown = this.context.shown(state);
    const rows: Row[] = [["measure", "layer", "scope", "scope_or_token", "value"]];
    for (const [layer, index] of shown.layers.entries()) {
      for (const a of shown.scopes) {
        for (const b of shown.scopes) {
          rows.push(["spearman", index, a, b, await shown.rho(layer, a, b)]);
        }
      }
    }
    for (const scope of shown.scopes) {
      const ratios = await shown.mixing(scope);
      if (ratios === null) continue;
      shown.layers.forEach((index, layer) =>
        shown.rows.labels.forEach((label, k) =>
          rows.push(["mixing_ratio", index, scope, label, ratios[layer * shown.rows.size + k]]),
        ),
      );
    }
    return rows;
  }

  describe(_cell: Cell): string {
    return "";
  }

  /** The small maps; drawn anew only when what they show has changed. */
  private async renderMaps(shown: Shown): Promise<void> {
    const { context } = this;
    const { state, ink } = context;
    const key = [placeKey(state), state.scale, state.diagonal, state.norm, state.palette, ink.dark].join();
    this.note.textContent = `Rows are layers, columns scopes. ${this.scaleWords()} Click a map to open it.`;
    const { scopes, layers } = shown;
    const room = context.room().width - 40;
    const most = layers.length > 8 ? 96 : 120;
    const size = Math.max(44, Math.min(most, Math.floor(room / scopes.length) - 8));
    const shape = shapeOf(shown);
    if (key !== this.drawn) {
      this.drawn = "";
      this.thumbs.clear();
      this.maps.style.gridTemplateColumns = `auto repeat(${scopes.length}, ${size}px)`;
      replace(
        this.maps,
        h("span", {}),
        ...scopes.map((scope) =>
          h("span", { class: "head", title: scope }, scope.endsWith("-W") ? scope : shortName(scope, scopes)),
        ),
        ...layers.flatMap((index, layer) => [
          h("span", { class: "side" }, String(index)),
          ...scopes.map((scope) => {
            const canvas = h("canvas", { width: shown.columns.size, height: shown.rows.size });
            canvas.style.width = `${size}px`;
            canvas.style.height = `${size * shape}px`;
            this.thumbs.set(`${scope}/${layer}`, canvas);
            return h(
              "button",
              {
                type: "button",
                "data-open": `${index}:${scope}`,
                "aria-label": `Open ${scope}, ${layerWords(shown.item.header, index)}`,
                title: `${scope}, ${layerWords(shown.item.header, index)}`,
                onclick: () => context.update({ layer, scope, view: "map" }),
              },
              canvas,
              ...shown.groups.slice(1).map(({ from }) => dividerAt((100 * from) / shown.columns.size)),
            );
          }),
        ]),
      );
    }
    for (const button of this.maps.querySelectorAll("button")) {
      const here = button.dataset.open === `${layers[state.layer]}:${state.scope}`;
      button.toggleAttribute("data-current", here);
    }
    if (key === this.drawn) return;
    let since = performance.now();
    for (const layer of layers.keys()) {
      for (const scope of scopes) {
        const map = await shown.normalised(scope, layer, state.norm);
        if (context.stale()) return;
        const pairs = shown.pairs(layer, scope, state.diagonal);
        const colouring = sequential(map, pairs, {
          scale: state.scale, palette: state.palette, top: scaleEnd(map, pairs, state.scale), what: "", dark: ink.dark,
        });
        const small = pixels(colouring, { rows: shown.rows.size, columns: shown.columns.size }, pairs.mask, ink.absent);
        this.thumbs.get(`${scope}/${layer}`)?.getContext("2d")?.drawImage(small, 0, 0);
        if (performance.now() - since > 30) {
          await pause();
          since = performance.now();
        }
      }
    }
    this.drawn = key;
  }

  private scaleWords(): string {
    const { scale, palette } = this.context.state;
    const beyond = `; ${beyondWord(palette)}: i = j and outliers beyond its end`;
    return `Each map has its own ${SCALE_WORDS[scale]}${scale === "clipped" ? beyond : ""}.`;
  }

  /** Spearman’s ρ of each component’s step, layer by layer. */
  private async renderChanges(shown: Shown): Promise<void> {
    const { context } = this;
    const { state, ink } = context;
    const all = steps(shown.scopes);
    this.chart = null;
    if (all.length === 0) return replace(this.changes);
    const lines = [];
    for (const { short, before, after } of all) {
      const values: number[] = [];
      for (const layer of shown.layers.keys()) {
        values.push(await shown.rho(layer, before, after));
        if (context.stale()) return;
      }
      lines.push({ name: short, values, current: after === state.scope });
      await pause();
    }
    this.chart = {
      name: "changes", title: "Spearman’s ρ by layer and component",
      subtitle: "each scope beside the one before its component; the lower, the more the component changed the map",
      layers: shown.layers.map(String), layer: state.layer, word: "Spearman’s ρ", lines,
      range: [Math.min(0.9, ...lines.flatMap(({ values }) => values).filter(Number.isFinite)), 1],
      width: Math.max(280, Math.min(720, context.room().width - 30)),
      choose: (line, layer) => context.update({ layer, scope: all[line].after, view: "map" }),
    };
    replace(this.changes, linesFigure(this.chart, ink));
  }

  private async renderSimilarity(shown: Shown): Promise<void> {
    const { context } = this;
    const { state, ink } = context;
    const { scopes, layers } = shown;
    const names = scopes.map((scope) => (scope.endsWith("-W") ? scope : shortName(scope, scopes)));
    const here = await this.rhos(shown, state.layer);
    if (context.stale()) return;
    const grid = (title: string, values: number[], name: string): Grid => ({
      name,
      title,
      subtitle: `Spearman’s ρ over the pairs that attention allows${shown.groups.length > 0 ? " and either scope has" : ""}`,
      rows: names,
      columns: names,
      values,
      low: Math.min(0, ...values.filter((value) => !Number.isNaN(value))),
      high: 1,
      colour: interpolateViridis,
      what: "Spearman’s ρ",
      cell: [46, 30],
      digits: 2,
      rowWord: "",
      columnWord: "",
    });
    const current = grid(capital(layerWords(shown.item.header, layers[state.layer])), here, "similarity-layer");
    replace(this.similarity, gridFigure(current, ink));
    this.grids = [current];
    const key = placeKey(state);
    if (this.means?.key !== key) {
      this.means = { key, values: this.everyRho(shown) };
    }
    const all = await this.means.values;
    if (context.stale()) return;
    const mean = here.map((_, k) => {
      const known = all.map((rhos) => rhos[k]).filter((rho) => !Number.isNaN(rho));
      return known.reduce((sum, rho) => sum + rho, 0) / known.length;
    });
    const average = grid(`Mean of ${layers.length} layers`, mean, "similarity-mean");
    this.grids = [current, average];
    replace(this.similarity, ...this.grids.map((each) => gridFigure(each, ink)));
  }

  private async everyRho(shown: Shown): Promise<number[][]> {
    const all: number[][] = [];
    for (const layer of shown.layers.keys()) {
      all.push(await this.rhos(shown, layer));
      await pause();
    }
    return all;
  }

  private async rhos(shown: Shown, layer: number): Promise<number[]> {
    const { scopes } = shown;
    const size = scopes.length;
    const values = new Array<number>(size * size).fill(1);
    for (let a = 0; a < size; a++) {
      for (let b = 0; b < a; b++) {
        values[a * size + b] = values[b * size + a] = await shown.rho(layer, scopes[a], scopes[b]);
      }
    }
    return values;
  }

  private async renderMixing(shown: Shown): Promise<void> {
    const { context } = this;
    const { state, ink } = context;
    const known = shown.scopes.filter((scope) => scope in shown.item.header.mixing);
    if (!known.includes(this.mixingScope)) {
      this.mixingScope = known.includes(state.scope) ? state.scope : (known.at(-1) ?? "");
    }
    this.mixingChoice.set(this.mixingScope, known.map((scope) => [scope, scope]));
    const ratios = this.mixingScope === "" ? null : await shown.mixing(this.mixingScope);
    if (context.stale()) return;
    if (ratios === null) {
      this.mixingGrid = null;
      replace(
        this.mixing,
        h("p", { class: "note" }, "Mixing ratios belong to tokens; they are shown for subwords only."),
      );
      return;
    }
    const wide = Math.max(3, Math.min(46, Math.floor((context.room().width - 90) / shown.rows.size)));
    this.mixingGrid = {
      name: "mixing",
      title: `Mixing ratio of ${this.mixingScope}`,
      subtitle: "‖Σ of other tokens’ parts‖ / (‖Σ of other tokens’ parts‖ + ‖own part‖)",
      rows: shown.layers.map(String),
      columns: shown.rows.labels,
      values: ratios,
      low: 0,
      high: 1,
      colour: interpolateCividis,
      what: "mixing ratio, 0 to 1",
      cell: [wide, 22],
      digits: wide >= 34 ? 2 : null,
      rowWord: "layer",
      columnWord: "target i (output)",
    };
    replace(this.mixing, gridFigure(this.mixingGrid, ink));
  }

  private savedMaps(): SVGElement {
    const { state } = this.context;
    const shown = this.context.shown(state);
    const { scopes, layers } = shown;
    const size = 96;
    const high = Math.round(size * shapeOf(shown));
    const [left, top] = [30, 56];
    const width = left + scopes.length * (size + 6);
    const height = top + layers.length * (high + 6);
    const figure = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT });
    const words = (x: number, y: number, text: string, more: Record<string, unknown>) =>
      figure.append(svg("text", { x, y, fill: LIGHT.text, ...more }, text));
    const { model, stack } = shown.item.header;
    words(0, 14, `${model}${stack === null ? "" : `, ${stack}`}: layers (rows) and scopes (columns)`, {
      "font-size": 14, "font-weight": 650,
    });
    words(0, 31, this.scaleWords(), { "font-size": fittingSize(this.scaleWords(), 11, width), fill: LIGHT.muted });
    scopes.forEach((scope, k) =>
      words(left + k * (size + 6) + size / 2, top - 6, scope.endsWith("-W") ? scope : shortName(scope, scopes), {
        "font-size": 10.5, "text-anchor": "middle",
      }),
    );
    layers.forEach((index, layer) => {
      const y = top + layer * (high + 6);
      words(left - 6, y + high / 2 + 4, String(index), { "font-size": 11, "text-anchor": "end" });
      scopes.forEach((scope, k) => {
        const canvas = this.thumbs.get(`${scope}/${layer}`);
        if (canvas === undefined) return;
        const large = document.createElement("canvas");
        large.width = Math.max(size * 2, canvas.width);
        large.height = Math.max(high * 2, canvas.height);
        const context = large.getContext("2d") as CanvasRenderingContext2D;
        context.imageSmoothingEnabled = false;
        context.drawImage(canvas, 0, 0, large.width, large.height);
        const x = left + k * (size + 6);
        figure.append(
          svg("image", { x, y, width: size, height: high, preserveAspectRatio: "none", href: large.toDataURL() }),
        );
        for (const { from } of shown.groups.slice(1)) {
          const at = x + (size * from) / shown.columns.size;
          figure.append(svg("line", { x1: at, x2: at, y1: y, y2: y + high, stroke: LIGHT.accent, "stroke-width": 1.5 }));
        }
      });
    });
    return figure;
  }
}

/** What the small maps depend on: which maps, and which of their tokens. */
function placeKey({ item, stack, special, level, sources }: State): string {
  return [item, stack, special, level, sources].join();
}

/** The height of a map beside its width; a wide one is still seen. */
function shapeOf({ rows, columns }: Shown): number {
  return Math.max(0.25, Math.min(2, rows.size / columns.size));
}

function dividerAt(percent: number): HTMLElement {
  const line = h("span", { class: "divider" });
  line.style.left = `${percent}%`;
  return line;
}

function capital(words: string): string {
  return words[0].toUpperCase() + words.slice(1);
}

/** Figures one below the other, with a caption. */
function below(figures: SVGElement[], caption: string): SVGElement {
  const size = (figure: SVGElement, name: string) => Number(figure.getAttribute(name));
  const gap = 18;
  const width = Math.max(...figures.map((figure) => size(figure, "width"))) + 16;
  const height = figures.reduce((sum, figure) => sum + size(figure, "height") + gap, 8);
  const whole = svg("svg", {
    xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT,
  });
  whole.append(svg("rect", { width, height, fill: LIGHT.paper }));
  let y = 8;
  for (const figure of figures) {
    figure.setAttribute("x", "8");
    figure.setAttribute("y", String(y));
    y += size(figure, "height") + gap;
    whole.append(figure);
  }
  addCaption(whole, caption, LIGHT);
  return whole;
}
