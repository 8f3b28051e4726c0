// Two maps side by side, and their signed difference.

import type { ShownAxis } from "./axes";
import { brief, diverging, number, sequential, signed } from "./colours";
import { buttons, h, list, replace, svg } from "./dom";
import { FONT } from "./figure";
import { groupAt } from "./groups";
import { HeatView } from "./heat";
import { placeOf, sourceName, targetName, whole, type Cell, type Heat, type Pin, type Window_ } from "./heatframe";
import { bars } from "./mapview";
import {
  extremePairs,
  largestSize,
  largestValue,
  normalise,
  spearman,
  subtract,
  type Axis,
  type Mask,
} from "./measures";
import { pairTable } from "./pairtable";
import type { Row } from "./save";
import { feedForward, unit } from "./scopes";
import type { Shown } from "./shown";
import { layerWords, stackIn, type Stack } from "./stacks";
import type { Ref } from "./state";
import { itemName, type Context, type Panel } from "./view";

const LISTED = 10;

export class CompareView implements Panel {
  readonly el: HTMLElement;
  private readonly first: HeatView;
  private readonly second: HeatView;
  private readonly signed: HeatView;
  private readonly choices: { a: RefChoice; b: RefChoice };
  private readonly norm;
  private readonly note = h("p", { class: "note", "data-role": "comparison" });
  private readonly panels: HTMLElement;
  private readonly lists = h("div", { class: "lists" });
  private heats: { a: Heat; b: Heat; difference: Heat } | null = null;

  constructor(private readonly context: Context) {
    const actions = (panel: () => Heat | undefined) => ({
      hover: (cell: Cell | null, event: PointerEvent | null) =>
        context.tooltip(cell === null || !panel() ? null : this.lines(cell), event),
      pin: (pin: Pin) => {
        const old = context.state.pin;
        const same = old?.axis === pin.axis && old.index === pin.index;
        context.update({ pin: same ? null : pin });
      },
      pair: (cell: Cell) => context.update({ pair: cell }),
      zoom: (zoom: Window_ | null) => context.update({ zoom }),
    });
    this.first = new HeatView(actions(() => this.heats?.a), "a");
    this.second = new HeatView(actions(() => this.heats?.b), "b");
    this.signed = new HeatView(actions(() => this.heats?.difference), "difference");
    this.choices = {
      a: new RefChoice("A", context, (a) => context.update({ a })),
      b: new RefChoice("B", context, (b) => context.update({ b })),
    };
    this.norm = buttons<Axis>(
      "Sums to 1",
      [
        { value: "source", label: "columns", title: "Each source’s column, as FF-amp is defined" },
        { value: "target", label: "rows", title: "Each target’s row" },
        { value: "none", label: "neither" },
      ],
      (cnorm) => context.update({ cnorm }),
      "cnorm",
    );
    this.panels = h("div", { class: "panels" }, this.first.el, this.second.el, this.signed.el);
    this.el = h(
      "div",
      { class: "compare" },
      h(
        "div",
        { class: "toolbar tight" },
        this.choices.a.el,
        h(
          "button",
          {
            type: "button",
            "data-action": "swap",
            title: "Exchange A and B",
            onclick: () => context.update({ a: context.state.b, b: context.state.a }),
          },
          "⇄ swap",
        ),
        this.choices.b.el,
        this.norm.el,
      ),
      this.note,
      this.panels,
      this.lists,
    );
  }

  async render(): Promise<void> {
    const { context } = this;
    const { state, ink } = context;
    const [a, b] = [context.shown(state.a), context.shown(state.b)];
    this.choices.a.set(state.a);
    this.choices.b.set(state.b);
    this.norm.set(state.cnorm);
    const [mapA, mapB] = await Promise.all([
      a.map(state.a.scope, state.a.layer),
      b.map(state.b.scope, state.b.layer),
    ]);
    if (context.stale()) return;
    const same = a.rows.size === b.rows.size && a.columns.size === b.columns.size;
    this.panels.hidden = this.lists.hidden = !same;
    if (!same) {
      this.heats = null;
      this.note.textContent =
        `These maps cannot be compared pair by pair: A has ${sizeInWords(a)}, B has ${sizeInWords(b)}. ` +
        "Choose texts of one length, or try words instead of subwords.";
      return;
    }
    const width = a.columns.size;
    const scopes = [state.a.scope, state.b.scope];
    // Pairs that either scope has are compared; each map shows those of its own.
    const mask = both(a.mask(state.a.layer, ...scopes), b.mask(state.b.layer, ...scopes));
    const masks = { A: both(mask, a.mask(state.a.layer, state.a.scope)), B: both(mask, b.mask(state.b.layer, state.b.scope)) };
    const scaled = [mapA, mapB].map((map) => normalise(map, width, state.cnorm));
    const tops = [largestValue(scaled[0], masks.A), largestValue(scaled[1], masks.B)];
    const shared = state.range === "map" ? null : Math.max(...tops);
    const base = {
      mask,
      same: a.same,
      rows: bothLabels(a.rows, b.rows),
      columns: bothLabels(a.columns, b.columns),
      special: { rows: bothSpecial(a.rows, b.rows), columns: bothSpecial(a.columns, b.columns) },
      groups: a.groups,
      window: state.zoom ?? whole(a.rows.size, width),
      pin: state.pin,
      pair: state.pair,
      caption: context.caption,
    };
    const plain = (ref: Ref, map: Float32Array, letter: "A" | "B", top: number): Heat => {
      const { header } = context.itemOf(ref);
      const what = unit(ref.scope, state.cnorm, header.provenance);
      const colours = (dark: boolean) =>
        sequential(map, masks[letter], {
          scale: state.scale, palette: state.palette, top: shared ?? top, what, dark,
        });
      return {
        ...base,
        name: letter,
        mask: masks[letter],
        title: `${letter}: ${ref.scope}, ${layerWords(header, header.layers[ref.layer])}`,
        subtitle: context.items.length > 1 ? itemName(context.items[ref.item], ref.item, context.items) : header.model,
        map,
        colouring: colours(ink.dark),
        recolour: colours,
        brief,
      };
    };
    const change = subtract(scaled[0], scaled[1]);
    const top = largestSize(change, mask);
    const name = this.isAmplification() ? "FF-amp" : "B − A";
    const colours = (dark: boolean) =>
      diverging(change, mask, {
        scale: state.scale, top, what: `${name}: ${unit(state.b.scope, state.cnorm, b.item.header.provenance)}, B − A`, dark,
      });
    this.heats = {
      a: plain(state.a, scaled[0], "A", tops[0]),
      b: plain(state.b, scaled[1], "B", tops[1]),
      difference: {
        ...base,
        name: "difference",
        title: name === "FF-amp" ? `FF-amp, ${layerWords(a.item.header, a.layers[state.a.layer])}` : name,
        subtitle: "amplified is above 0, damped is below",
        map: change,
        colouring: colours(ink.dark),
        recolour: colours,
        brief: (value: number) => (value >= 0.0005 ? "+" : "") + brief(value),
      },
    };
    const room = this.room();
    this.first.draw(this.heats.a, room, ink);
    this.second.draw(this.heats.b, room, ink);
    this.signed.draw(this.heats.difference, room, ink);
    const oneLayer = a === b && state.a.layer === state.b.layer;
    const rho = oneLayer
      ? await a.rho(state.a.layer, state.a.scope, state.b.scope)
      : spearman(mapA, mapB, mask);
    if (context.stale()) return;
    this.note.textContent =
      `Spearman’s ρ of A and B is ${Number.isNaN(rho) ? "not defined" : rho.toFixed(3)} ` +
      `over the pairs that attention allows${a.groups.length > 0 ? " and either scope has" : ""}.`;
    this.note.dataset.rho = String(rho);
    this.renderLists(this.heats.difference);
  }

  async saved(): Promise<SVGElement> {
    if (this.heats === null) throw new Error("there is nothing to save");
    const figures = [this.first, this.second, this.signed].map((view) => view.saved());
    return beside(figures);
  }

  async table(): Promise<Row[]> {
    if (this.heats === null) return [];
    const { a, b, difference: change } = this.heats;
    return pairTable(change, {}, { a: a.map, b: b.map, difference: change.map });
  }

  get current(): Heat | null {
    return this.heats?.difference ?? null;
  }

  describe(cell: Cell): string {
    return this.lines(cell).join(", ");
  }

  cursor(cell: Cell | null): void {
    for (const view of [this.first, this.second, this.signed]) view.cross(cell);
  }

  private room(): { width: number; height: number } {
    const { width, height } = this.context.room();
    const gap = 18;
    const columns = width > 940 ? 3 : width > 640 ? 2 : 1;
    const each = (width - gap * (columns - 1)) / columns;
    return { width: each, height: Math.max(360, Math.min(height, each * 1.4)) };
  }

  private isAmplification(): boolean {
    const { a, b, cnorm } = this.context.state;
    const { scopes, provenance } = this.context.itemOf(b).header;
    const step = feedForward(scopes, String(provenance.components ?? ""));
    return (
      step !== null && cnorm === "source" && a.item === b.item && a.stack === b.stack && a.layer === b.layer &&
      a.scope === step.before && b.scope === step.after
    );
  }

  private lines(cell: Cell): string[] {
    if (this.heats === null) return [];
    const { a, b, difference: change } = this.heats;
    const k = placeOf(a, cell);
    const [source, target] = [sourceName(a, cell.source), targetName(a, cell.target)];
    if (change.mask !== null && !change.mask[k]) {
      return [`source ${source}`, `target ${target}`, this.whyNot(k)];
    }
    return [
      `source ${source} (${cell.source - (groupAt(a.groups, cell.source)?.from ?? 0)})`,
      `target ${target} (${cell.target})`,
      `A ${number(a.map[k])}, B ${number(b.map[k])}`,
      `B − A ${signed(change.map[k])}`,
    ];
  }

  /** Why a pair has no value: attention does not allow it, or its sequence is in neither scope. */
  private whyNot(k: number): string {
    const { a, b } = this.context.state;
    const masks = [a, b].map((ref) => this.context.shown(ref).mask(ref.layer));
    return masks.every((mask) => mask === null || mask[k]) ? "not a source of these scopes" : "no attention";
  }

  private renderLists(heat: Heat): void {
    const { context } = this;
    const { largest, smallest } = extremePairs(heat.map, heat.columns.length, heat.mask, heat.same, LISTED);
    const block = (title: string, kind: string, pairs: typeof largest) =>
      h(
        "section",
        { "data-list": kind },
        h("h3", {}, title),
        bars(
          pairs.map(({ target, source, value }) => ({
            label: `${sourceName(heat, source)} → ${heat.rows[target]}`,
            value,
            current: context.state.pair?.target === target && context.state.pair.source === source,
            go: () => context.update({ pair: { target, source }, zoom: null, pin: null }),
          })),
          signed,
        ),
      );
    replace(
      this.lists,
      block("Most amplified pairs (source → target)", "amplified", largest.filter((pair) => pair.value > 0)),
      block("Most damped pairs (source → target)", "damped", smallest.filter((pair) => pair.value < 0)),
    );
  }
}

/** Lists of items, layers and scopes for one side of the comparison. */
class RefChoice {
  readonly el: HTMLElement;
  private readonly item;
  private readonly stack;
  private readonly layer;
  private readonly scope;
  private ref: Ref | null = null;

  constructor(
    private readonly letter: "A" | "B",
    private readonly context: Context,
    change: (ref: Ref) => void,
  ) {
    const set = (patch: Partial<Ref>) => {
      if (this.ref === null) return;
      const ref = { ...this.ref, ...patch };
      ref.stack = stackIn(context.items[ref.item], ref.stack);
      const { layers, scopes } = context.itemOf(ref).header;
      const scope = scopes.includes(ref.scope) ? ref.scope : scopes[scopes.length - 1];
      change({ ...ref, scope, layer: Math.min(ref.layer, layers.length - 1) });
    };
    const name = letter.toLowerCase();
    this.item = list(`${letter}: text`, (value) => set({ item: Number(value) }), `${name}-item`);
    this.stack = list(`${letter}: stack`, (stack) => set({ stack: stack as Stack }), `${name}-stack`);
    this.layer = list(`${letter}: layer`, (value) => set({ layer: Number(value) }), `${name}-layer`);
    this.scope = list(`${letter}: scope`, (scope) => set({ scope }), `${name}-scope`);
    this.el = h(
      "div",
      { class: "row", role: "group", "aria-label": `Map ${this.letter}` },
      this.item.el,
      this.stack.el,
      this.layer.el,
      this.scope.el,
    );
  }

  set(ref: Ref): void {
    this.ref = ref;
    const { items } = this.context;
    const { layers, scopes } = this.context.itemOf(ref).header;
    const stacks: [string, string][] = [["encoder", "Encoder"], ["decoder", "Decoder"]];
    this.stack.set(ref.stack, items[ref.item].encoder === null ? [] : stacks);
    this.item.set(String(ref.item), items.map((item, k) => [String(k), itemName(item, k, items)]));
    this.layer.set(String(ref.layer), layers.map((layer, k) => [String(k), String(layer)]));
    this.scope.set(ref.scope, scopes.map((scope) => [scope, scope]));
  }
}

/** Labels of two axes of one length; where they differ, both. */
function bothLabels({ labels: a }: ShownAxis, { labels: b }: ShownAxis): string[] {
  return a === b ? a : a.map((label, k) => (label === b[k] ? label : `${label} / ${b[k]}`));
}

function bothSpecial({ special: a }: ShownAxis, { special: b }: ShownAxis): boolean[] {
  return a.map((flag, k) => flag && b[k]);
}

function sizeInWords({ rows, columns }: Shown): string {
  return rows === columns ? `${rows.size} tokens` : `${rows.size} targets of ${columns.size} sources`;
}

function both(a: Mask, b: Mask): Mask {
  if (a === null || b === null || a === b) return a ?? b;
  return a.map((flag, k) => flag & b[k]);
}

/** Figures side by side in one. */
export function beside(figures: SVGElement[], gap = 12): SVGElement {
  const sizes = figures.map((figure) =>
    ["width", "height"].map((name) => Number(figure.getAttribute(name))),
  );
  const width = sizes.reduce((sum, [each]) => sum + each, gap * (figures.length - 1));
  const height = Math.max(...sizes.map(([, each]) => each));
  const whole = svg("svg", {
    xmlns: "http://www.w3.org/2000/svg",
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    "font-family": FONT,
  });
  whole.append(svg("rect", { width, height, fill: "#ffffff" }));
  let x = 0;
  figures.forEach((figure, k) => {
    figure.setAttribute("x", String(x));
    x += sizes[k][0] + gap;
    whole.append(figure);
  });
  return whole;
}
