// One map, large: as a heat map or as lines, with a token or a pair looked at more closely beside it.

import { ArcView } from "./arcs";
import { brief, number, sequential } from "./colours";
import { h, replace } from "./dom";
import { HeatView, whole, type Cell, type Heat, type Pin } from "./heat";
import { columnShare, extremePairs, largestValue } from "./measures";
import type { Row } from "./save";
import { chain, componentsOf, shortName, unit } from "./scopes";
import type { Shown } from "./shown";
import type { Context, Panel } from "./view";

const LISTED = 12;

export class MapView implements Panel {
  readonly el: HTMLElement;
  private readonly heatView: HeatView;
  private readonly arcView: ArcView;
  private readonly stage = h("div", { class: "stage" });
  private readonly aside = h("aside", { class: "aside", "aria-label": "Details" });
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
    const shown = context.shown(state.item);
    const map = await shown.normalised(state.scope, state.layer, state.norm);
    const top = await this.top(shown);
    if (context.stale()) return;
    const mask = shown.mask(state.layer);
    const { header } = shown.item;
    const colours = (dark: boolean) =>
      sequential(map, mask, {
        scale: state.scale,
        palette: state.palette,
        top: top ?? largestValue(map, mask),
        what: unit(state.scope, state.norm, header.provenance),
        dark,
      });
    this.shown = shown;
    this.heat = {
      name: "map",
      title: `${state.scope}, layer ${header.layers[state.layer]}`,
      subtitle: `after ${componentsOf(state.scope).join(" → ")}${
        state.scope.endsWith("-W") ? " (weights)" : ""
      } · ${header.model}`,
      map,
      mask,
      n: shown.n,
      rows: shown.labels,
      columns: shown.labels,
      special: shown.special,
      colouring: colours(ink.dark),
      recolour: colours,
      brief,
      window: state.zoom ?? whole(shown.n),
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
    const layer = shown.layers[state.layer];
    const rows: Row[] = [
      ["scope", "layer", "target", "target_token", "source", "source_token", "value"],
    ];
    for (let i = 0; i < heat.n; i++) {
      for (let j = 0; j < heat.n; j++) {
        const pair = [i, heat.rows[i], j, heat.columns[j]];
        rows.push([state.scope, layer, ...pair, heat.map[i * heat.n + j]]);
      }
    }
    return rows;
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

  private async top(shown: Shown): Promise<number | null> {
    const { state } = this.context;
    if (state.range === "map" || state.scale === "rank") return null;
    // Weights and norms are different quantities, so they do not share a scale.
    const kind = state.scope.slice(-2);
    const scopes = shown.scopes.filter((scope) => scope.endsWith(kind));
    const layers = state.range === "layer" ? [state.layer] : shown.layers.map((_, k) => k);
    return shown.top(scopes, layers, state.norm);
  }

  private lines(cell: Cell): string[] {
    const { heat, shown } = this;
    if (heat === null || shown === null) return [];
    const k = cell.target * heat.n + cell.source;
    const allowed = heat.mask === null || heat.mask[k];
    const value = allowed ? number(heat.map[k]) : "no attention";
    return [
      `source ${heat.columns[cell.source]} (${shown.positions[cell.source]})`,
      `target ${heat.rows[cell.target]} (${shown.positions[cell.target]})`,
      `${unit(this.context.state.scope, this.context.state.norm, shown.item.header.provenance)}: ${value}`,
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
    const { largest } = extremePairs(heat.map, heat.n, heat.mask, LISTED);
    const found = largest.filter((pair) => pair.value > 0);
    replace(
      this.aside,
      h("h3", {}, "Strongest pairs"),
      h("p", { class: "note" }, "of two different tokens; source → target"),
      bars(
        found.map(({ target, source, value }) => ({
          label: `${heat.columns[source]} → ${heat.rows[target]}`,
          value,
          go: () => context.update({ pair: { target, source } }),
        })),
      ),
      h("p", { class: "note" }, "Click a token to pin its row or column, a cell to follow its pair " +
        "through the layer; drag to zoom in, double-click to zoom out."),
    );
  }

  private renderPin({ axis, index }: Pin): void {
    const { heat, context } = this;
    if (heat === null) return;
    const row = axis === "row";
    const entries: { other: number; value: number }[] = [];
    for (let other = 0; other < heat.n; other++) {
      const k = row ? index * heat.n + other : other * heat.n + index;
      if (heat.mask === null || heat.mask[k]) entries.push({ other, value: heat.map[k] });
    }
    entries.sort((x, y) => y.value - x.value);
    const name = row ? heat.rows[index] : heat.columns[index];
    replace(
      this.aside,
      h("h3", {}, row ? `What ${name} is made of` : `Where ${name} goes`),
      h(
        "p",
        { class: "note" },
        row ? `row of target ${index}: its sources` : `column of source ${index}: its targets`,
      ),
      bars(
        entries.slice(0, 2 * LISTED).map(({ other, value }) => ({
          label: row ? heat.columns[other] : heat.rows[other],
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
    const names = chain(shown.scopes);
    const values = await Promise.all(
      names.map(async (scope) => {
        return columnShare(await shown.map(scope, state.layer), heat.n, target, source);
      }),
    );
    if (context.stale()) return;
    replace(
      this.aside,
      h("h3", {}, `${heat.columns[source]} → ${heat.rows[target]}`),
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
      h(
        "div",
        { class: "row" },
        h("button", { type: "button", onclick: () => context.update({ pin: { axis: "row", index: target }, pair: null }) }, "Pin row"),
        h("button", { type: "button", onclick: () => context.update({ pin: { axis: "column", index: source }, pair: null }) }, "Pin column"),
        h("button", { type: "button", onclick: () => context.update({ pair: null }) }, "Clear (Esc)"),
      ),
    );
  }
}

export interface Bar {
  label: string;
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
