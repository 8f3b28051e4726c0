// Two maps side by side, and their signed difference.

import { isolate, isolated } from "./bidi";
import { brief, diverging, LIGHT, number, sequential, signed } from "./colours";
import { buttons, h, replace, svg } from "./dom";
import { addCaption, FONT } from "./figure";
import { groupAt } from "./groups";
import { HeatView } from "./heat";
import { placeOf, sourceName, targetName, whole, type Cell, type Heat, type Pin, type Window_ } from "./heatframe";
import { bars } from "./mapview";
import {
  extremePairs,
  normalise,
  spearman,
  subtract,
  type Axis,
} from "./measures";
import { pairTable } from "./pairtable";
import { RefChoice } from "./refchoice";
import type { Row } from "./save";
import { beyond, SCALE_WORDS, scaleEnd } from "./scale";
import { feedForward, unit } from "./scopes";
import type { Shown } from "./shown";
import { alignSides, aloneLines, both, type Side } from "./sides";
import { layerWords } from "./stacks";
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
  private heats: { a: Heat; b: Heat; difference: Heat | null } | null = null;

  constructor(private readonly context: Context) {
    const actions = (panel: () => Heat | null | undefined) => ({
      hover: (cell: Cell | null, event: PointerEvent | null) =>
        context.tooltip(cell === null || !panel() ? null : this.lines(cell, panel() ?? undefined), event),
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
    const sides = { A: this.side("A", state.a, a, mapA), B: this.side("B", state.b, b, mapB) };
    const same = a.rows.size === b.rows.size && a.columns.size === b.columns.size;
    this.signed.el.hidden = this.lists.hidden = !same;
    this.panels.dataset.panels = same ? "3" : "2";
    if (same) alignSides(sides, a, b, state);
    // Weights and norms are different quantities, so they do not share a range.
    const shared = sides.A.what === sides.B.what && state.scale !== "rank";
    const ends = [sides.A, sides.B].map(({ map, pairs }) => scaleEnd(map, pairs, state.scale));
    const [endA, endB] = shared ? ends.map(() => Math.max(...ends)) : ends;
    const reach = shared ? ", the same for A and B" : "";
    const heats = { a: this.heat(sides.A, endA, reach), b: this.heat(sides.B, endB, reach) };
    const difference = same ? this.difference(sides, heats.a) : null;
    this.heats = { ...heats, difference };
    const room = this.room(same ? 3 : 2);
    this.first.draw(heats.a, room, ink);
    this.second.draw(heats.b, room, ink);
    const ranges = shared || state.scale === "rank" ? "" : " Weights and norms are different quantities, so A and B have ranges of their own.";
    if (difference === null) {
      delete this.note.dataset.rho;
      this.note.textContent =
        `A has ${sizeInWords(a)}, B has ${sizeInWords(b)}: they are shown side by side, without a difference, ` +
        `which needs texts of one length (words instead of subwords may have it).${ranges}`;
      return;
    }
    this.signed.draw(difference, room, ink);
    const oneLayer = a === b && state.a.layer === state.b.layer;
    const rho = oneLayer
      ? await a.rho(state.a.layer, state.a.scope, state.b.scope)
      : spearman(mapA, mapB, difference.mask);
    if (context.stale()) return;
    this.note.textContent =
      `Spearman’s ρ of A and B is ${Number.isNaN(rho) ? "not defined" : rho.toFixed(3)} ` +
      `over the pairs that attention allows${a.groups.length > 0 ? " and either scope has" : ""}.${ranges}`;
    this.note.dataset.rho = String(rho);
    this.renderLists(difference);
  }

  /** One map of the comparison, normalised, with the pairs that have colours. */
  private side(letter: "A" | "B", ref: Ref, shown: Shown, map: Float32Array): Side {
    const { state, items } = this.context;
    const { header } = shown.item;
    return {
      letter, shown,
      map: normalise(map, shown.columns.size, state.cnorm),
      pairs: shown.pairs(ref.layer, ref.scope, state.diagonal),
      what: unit(ref.scope, state.cnorm, header.provenance),
      title: `${letter}: ${ref.scope}, ${layerWords(header, header.layers[ref.layer])}`,
      subtitle: items.length > 1 ? itemName(items[ref.item], ref.item, items) : header.model,
      labels: {
        rows: shown.rows.labels, columns: shown.columns.labels,
        special: { rows: shown.rows.special, columns: shown.columns.special },
      },
      alone: true,
    };
  }

  private heat(side: Side, top: number, reach: string): Heat {
    const { context } = this;
    const { state, ink } = context;
    const { map, pairs, what, shown, labels } = side;
    const colours = (dark: boolean) =>
      sequential(map, pairs, { scale: state.scale, palette: state.palette, top, what, dark, reach });
    return {
      name: side.letter, title: side.title, subtitle: side.subtitle,
      map, mask: pairs.mask, same: shown.same, ...labels,
      groups: shown.groups,
      colouring: colours(ink.dark),
      recolour: colours,
      brief,
      // Places are those of one text, so they mean nothing in a text of another length.
      window: (side.alone ? null : state.zoom) ?? whole(shown.rows.size, shown.columns.size),
      pin: side.alone ? null : state.pin,
      pair: side.alone ? null : state.pair,
      caption: context.caption,
    };
  }

  /** B − A, over the pairs that either scope has; i = j does not stretch the scale. */
  private difference({ A, B }: { A: Side; B: Side }, beside: Heat): Heat {
    const { context } = this;
    const { state, ink } = context;
    const change = subtract(A.map, B.map);
    const scopes = [state.a.scope, state.b.scope];
    const mask = both(A.shown.mask(state.a.layer, ...scopes), B.shown.mask(state.b.layer, ...scopes));
    const same = A.shown.same;
    const sizes = change.map(Math.abs);
    const top = scaleEnd(sizes, { mask, same, diagonal: false }, state.scale);
    const name = this.isAmplification() ? "FF-amp" : "B − A";
    const what = `${name}: ${B.what}, B − A`;
    const { others, same: own } = beyond(sizes, { mask, same, diagonal: state.diagonal }, top);
    const over = [own > 0 && "i = j", others > 0 && `${others} pairs`].filter(Boolean).join(" and ");
    const scale = `${SCALE_WORDS[state.scale]} of the pairs i ≠ j${over && state.scale !== "rank" ? `; beyond it, in its last colours: ${over}` : ""}`;
    const colours = (dark: boolean) => ({
      ...diverging(change, mask, {
        scale: state.scale, top, what, dark, left: (k: number) => !state.diagonal && same[k] > 0,
      }),
      scale,
    });
    return {
      ...beside,
      name: "difference",
      mask,
      title: name === "FF-amp" ? `FF-amp, ${layerWords(A.shown.item.header, A.shown.layers[state.a.layer])}` : name,
      subtitle: "amplified is above 0, damped is below",
      map: change,
      colouring: colours(ink.dark),
      recolour: colours,
      brief: (value: number) => (value >= 0.0005 ? "+" : "") + brief(value),
    };
  }

  async saved(): Promise<SVGElement> {
    if (this.heats === null) throw new Error("there is nothing to save");
    const views = [this.first, this.second, ...(this.heats.difference === null ? [] : [this.signed])];
    const whole = beside(views.map((view) => view.saved(false)));
    const { a, b } = this.context.state;
    const [ofA, ofB] = [a, b].map((ref) => this.context.captionOf(ref));
    addCaption(whole, ofA === ofB ? ofA : [`A: ${ofA}`, `B: ${ofB}`], LIGHT);
    return whole;
  }

  async table(): Promise<Row[]> {
    if (this.heats === null) return [];
    const { a, b, difference } = this.heats;
    if (difference !== null) return pairTable(difference, {}, { a: a.map, b: b.map, difference: difference.map });
    return [...pairTable(a, { map: "A" }, { value: a.map }), ...pairTable(b, { map: "B" }, { value: b.map }).slice(1)];
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

  private room(panels: number): { width: number; height: number } {
    const { width, height } = this.context.room();
    const gap = 18;
    const columns = Math.min(panels, width > 940 ? 3 : width > 640 ? 2 : 1);
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

  private lines(cell: Cell, panel?: Heat): string[] {
    if (this.heats === null) return [];
    const { a, b, difference: change } = this.heats;
    if (change === null) return panel === undefined ? [] : aloneLines(panel, cell);
    const k = placeOf(a, cell);
    const [source, target] = [sourceName(a, cell.source), targetName(a, cell.target)].map(isolate);
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
            label: isolated`${sourceName(heat, source)} → ${heat.rows[target]}`,
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

function sizeInWords({ rows, columns }: Shown): string {
  return rows === columns ? `${rows.size} tokens` : `${rows.size} targets of ${columns.size} sources`;
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
