// One map, large: as a heat map or as lines, with a token or a pair looked at more closely beside it.

import { isolate, isolated } from "./bidi";
import { ArcView } from "./arcs";
import { brief, number, sequential } from "./colours";
import { h, replace } from "./dom";
import { HeatView } from "./heat";
import { placeOf, sourceName, targetName, whole, type Cell, type Heat, type Pin } from "./heatframe";
import { headsEnd } from "./headsview";
import { linesFigure, type Line } from "./lines";
import { columnShare, extremePairs, rowShare, type Axis } from "./measures";
import { pairTable } from "./pairtable";
import type { Row } from "./save";
import { scaleEnd } from "./scale";
import { chain, headUnit, scopeWords, shortName } from "./scopes";
import type { Shown } from "./shown";
import { layerWords } from "./stacks";
import type { Context, Panel } from "./view";

const LISTED = 12;

export class MapView implements Panel {
  readonly el: HTMLElement;
  private readonly heatView: HeatView;
  private readonly arcView: ArcView;
  private readonly stage = h("div", { class: "stage" });
  private readonly aside = h("aside", { class: "aside", "aria-label": "Details" });
  private readonly trajectory = h("div", { class: "key", "data-figure": "trajectory" });
  private heat: Heat | null = null;
  private shown: Shown | null = null;

  constructor(private readonly context: Context) {
    const actions = {
      hover: (cell: Cell | null, event: PointerEvent | null) =>
        context.tooltip(cell === null ? null : this.lines(cell), event),
      pin: (pin: Pin) => this.pin(pin),
      pair: (cell: Cell) => context.update({ pair: cell, pin: null }),
      zoom: (zoom: Heat["window"] | null) => context.update({ zoom }),
    };
    this.heatView = new HeatView(actions, "map");
    this.arcView = new ArcView(actions);
    this.el = h("div", { class: "mapview" }, this.stage, this.aside);
  }

  get current(): Heat | null {
    return this.heat;
  }

  async render(): Promise<void> {
    const { context } = this;
    const { state, ink } = context;
    const shown = context.shown(state);
    const map = await this.map(shown);
    const shared = await this.sharedEnd(shown);
    if (context.stale()) return;
    const pairs = shown.pairs(state.layer, state.scope, state.diagonal);
    const { header } = shown.item;
    const top = shared ?? scaleEnd(map, pairs, state.scale);
    const reach = { map: "", layer: ", shared by this layer’s maps", all: ", shared by all layers’ maps" }[state.range];
    const what = this.what(shown);
    const colours = (dark: boolean) =>
      sequential(map, pairs, { scale: state.scale, palette: state.palette, top, what, dark, reach });
    const named = scopeWords(state.scope);
    if (state.names === "papers") named.reverse();
    this.shown = shown;
    this.heat = {
      name: "map",
      title: `${named[0]}, ${layerWords(header, header.layers[state.layer])}${state.head === null ? "" : `, head ${state.head}`}`,
      subtitle: `${named[1]} · ${header.model}`,
      map,
      mask: pairs.mask,
      same: shown.same,
      rows: shown.rows.labels,
      columns: shown.columns.labels,
      special: { rows: shown.rows.special, columns: shown.columns.special },
      groups: shown.groups,
      colouring: colours(ink.dark),
      recolour: colours,
      brief,
      window: state.zoom ?? whole(shown.rows.size, shown.columns.size),
      pin: state.pin,
      pair: state.pair,
      caption: context.caption,
    };
    const view = state.form === "heat" ? this.heatView : this.arcView;
    if (view.el.parentNode !== this.stage) replace(this.stage, view.el);
    view.draw(this.heat, this.room(), ink);
    await this.renderAside();
  }

  async saved(): Promise<SVGElement> {
    return this.context.state.form === "heat" ? this.heatView.saved() : this.arcView.saved();
  }

  async table(): Promise<Row[]> {
    const { heat, shown } = this;
    if (heat === null || shown === null) return [];
    const { state } = this.context;
    const { stack } = shown.item.header;
    const place: Record<string, string | number> = { scope: state.scope, layer: shown.layers[state.layer] };
    if (state.head !== null) place.head = state.head;
    return pairTable(heat, stack === null ? place : { stack, ...place }, { value: heat.map });
  }

  describe(cell: Cell): string {
    return this.lines(cell).join(", ");
  }

  cursor(cell: Cell | null): void {
    this.heatView.cross(cell);
  }

  /** Room for the figure; the details stand beside it where the page is wide. */
  private room(): { width: number; height: number } {
    const { width, height } = this.context.room();
    return { width: width > 860 ? width - 300 : width, height };
  }

  /** The map that is shown: of all heads together, or of one. */
  private map(shown: Shown): Promise<Float32Array> {
    const { scope, layer, head, norm } = this.context.state;
    return head === null ? shown.normalised(scope, layer, norm) : shown.head(scope, layer, head, norm);
  }

  /** Where the scale ends that the maps in the chosen range share; null where this map has its own. */
  private async sharedEnd(shown: Shown): Promise<number | null> {
    const { state } = this.context;
    if (state.range === "map" || state.scale === "rank") return null;
    const layers = state.range === "layer" ? [state.layer] : [...shown.layers.keys()];
    if (state.head !== null) return headsEnd(shown, state.scope, layers, state);
    // Weights and norms are different quantities, so they do not share a scale.
    const kind = state.scope.slice(-2);
    const scopes = shown.scopes.filter((scope) => scope.endsWith(kind));
    return shown.end(scopes, layers, state);
  }

  private what(shown: Shown): string {
    const { scope, norm, head } = this.context.state;
    return headUnit(scope, norm, shown.item.header.provenance, head !== null);
  }

  private lines(cell: Cell): string[] {
    const { heat, shown } = this;
    if (heat === null || shown === null) return [];
    const { layer } = this.context.state;
    const k = placeOf(heat, cell);
    const allowed = shown.mask(layer);
    let value = number(heat.map[k]);
    if (allowed !== null && !allowed[k]) value = "no attention";
    else if (heat.mask !== null && !heat.mask[k]) value = "not a source of this scope";
    return [
      `source ${isolate(sourceName(heat, cell.source))} (${shown.columns.positions[cell.source]})`,
      `target ${isolate(targetName(heat, cell.target))} (${shown.rows.positions[cell.target]})`,
      `${this.what(shown)}: ${value}`,
    ];
  }

  private pin(pin: Pin): void {
    const old = this.context.state.pin;
    const same = old !== null && old.axis === pin.axis && old.index === pin.index;
    this.context.update({ pin: same ? null : pin, pair: null });
  }

  private async renderAside(): Promise<void> {
    const { state } = this.context;
    if (state.pair !== null) await this.renderPair(state.pair);
    else if (state.pin !== null) this.renderPin(state.pin);
    else this.renderStrongest();
  }

  private renderStrongest(): void {
    const { heat, context } = this;
    if (heat === null) return;
    const { largest } = extremePairs(heat.map, heat.columns.length, heat.mask, heat.same, LISTED);
    const found = largest.filter((pair) => pair.value > 0);
    replace(
      this.aside,
      h("h3", {}, "Strongest pairs"),
      h("p", { class: "note" }, found.length > 0 || heat.groups.length === 0
        ? "of two different tokens; source → target"
        : "none: the sequence whose columns are shown is not a source of this scope"),
      bars(
        found.map(({ target, source, value }) => ({
          label: isolated`${sourceName(heat, source)} → ${heat.rows[target]}`,
          value,
          go: () => context.update({ pair: { target, source } }),
        })),
      ),
      h("p", { class: "note" }, "Click a token to pin its row or column, a cell to follow its pair " +
        "through the layer and across all layers; drag to zoom in, double-click to zoom out."),
    );
  }

  private renderPin({ axis, index }: Pin): void {
    const { heat, context } = this;
    if (heat === null) return;
    const row = axis === "row";
    const entries: { other: number; value: number }[] = [];
    for (let other = 0; other < (row ? heat.columns : heat.rows).length; other++) {
      const k = placeOf(heat, row ? { target: index, source: other } : { target: other, source: index });
      if (heat.mask === null || heat.mask[k]) entries.push({ other, value: heat.map[k] });
    }
    entries.sort((x, y) => y.value - x.value);
    const name = row ? heat.rows[index] : sourceName(heat, index);
    replace(
      this.aside,
      h("h3", {}, row ? isolated`What ${name} is made of` : isolated`Where ${name} goes`),
      h(
        "p",
        { class: "note" },
        row ? `row of target ${index}: its sources` : `column of source ${index}: its targets`,
      ),
      bars(
        entries.slice(0, 2 * LISTED).map(({ other, value }) => ({
          label: isolated`${row ? sourceName(heat, other) : heat.rows[other]}`,
          value,
          go: () =>
            context.update({
              pair: row ? { target: index, source: other } : { target: other, source: index },
            }),
        })),
      ),
      h("button", { type: "button", onclick: () => context.update({ pin: null }) }, "Unpin (Esc)"),
    );
  }

  private async renderPair({ target, source }: Cell): Promise<void> {
    const { heat, shown, context } = this;
    if (heat === null || shown === null) return;
    const { state } = context;
    const sequence = shown.columns.sequences[source];
    const names = chain(shown.scopes).filter((scope) => shown.has(scope, sequence));
    const values = await Promise.all(
      names.map(async (scope) => {
        return columnShare(await shown.map(scope, state.layer), heat.columns.length, target, source);
      }),
    );
    if (context.stale()) return;
    replace(this.trajectory);
    replace(
      this.aside,
      h("h3", {}, isolated`${sourceName(heat, source)} → ${heat.rows[target]}`),
      h("p", { class: "note pair-value" }, this.lines({ target, source }).at(-1) as string),
      h("h4", {}, "Through this layer"),
      h("p", { class: "note" }, "share of the source’s column in each scope"),
      bars(
        names.map((scope, k) => ({
          label: scope.endsWith("-W") ? scope : shortName(scope, shown.scopes),
          value: values[k],
          current: scope === state.scope,
          go: () => context.update({ scope }),
        })),
      ),
      this.trajectory,
      h(
        "div",
        { class: "row" },
        h("button", { type: "button", onclick: () => context.update({ pin: { axis: "row", index: target }, pair: null }) }, "Pin row"),
        h("button", { type: "button", onclick: () => context.update({ pin: { axis: "column", index: source }, pair: null }) }, "Pin column"),
        h("button", { type: "button", onclick: () => context.update({ pair: null }) }, "Clear (Esc)"),
      ),
    );
    await this.renderTrajectory(names, { target, source });
  }

  /** The pair across all layers, a line for each scope. */
  private async renderTrajectory(names: string[], cell: Cell): Promise<void> {
    const { shown, heat, context } = this;
    if (shown === null || heat === null) return;
    const { state, ink } = context;
    const lines: Line[] = [];
    for (const scope of names) {
      const values: number[] = [];
      for (const layer of shown.layers.keys()) {
        const mask = shown.mask(layer, scope);
        const k = placeOf(heat, cell);
        const allowed = mask === null || mask[k];
        values.push(allowed ? shareOf(await shown.map(scope, layer), heat.columns.length, cell, state.norm) : NaN);
        if (context.stale()) return;
      }
      lines.push({
        name: scope.endsWith("-W") ? scope : shortName(scope, shown.scopes), values, current: scope === state.scope,
      });
    }
    const word = state.norm === "target" ? "share of the target’s row" : "share of the source’s column";
    const width = Math.max(230, Math.min(340, this.aside.clientWidth || 300));
    replace(this.trajectory, linesFigure({
      name: "trajectory", title: "Across the layers", subtitle: `${word}, by scope; click a point to go there`,
      layers: shown.layers.map(String), layer: state.layer, word, lines, width,
      choose: (line, layer) => context.update({ scope: names[line], layer }),
    }, ink));
  }
}

/** A pair’s share of its target’s row, or else of its source’s column. */
function shareOf(map: Float32Array, width: number, { target, source }: Cell, norm: Axis): number {
  return norm === "target" ? rowShare(map, width, target, source) : columnShare(map, width, target, source);
}

export interface Bar {
  label: string | HTMLElement;
  value: number;
  current?: boolean;
  go: () => void;
}

/** A list of buttons, each with a bar as long as its value is large. */
export function bars(entries: Bar[], write: (value: number) => string = number): HTMLElement {
  const top = Math.max(...entries.map(({ value }) => Math.abs(value)), 1e-30);
  return h(
    "ol",
    { class: "bars" },
    ...entries.map(({ label, value, current, go }) => {
      const fill = h("span", { class: value < 0 ? "fill minus" : "fill" });
      fill.style.width = `${Math.round((100 * Math.abs(value)) / top) || 0}%`;
      return h(
        "li",
        {},
        h(
          "button",
          { type: "button", onclick: go, "aria-current": current ? "true" : null },
          fill,
          h("span", { class: "name" }, label),
          h("span", { class: "value" }, write(value)),
        ),
      );
    }),
  );
}
