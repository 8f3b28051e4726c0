// What is looked at, and how it is written into an address.

import type { Palette } from "./colours";
import type { Sequences, Sources } from "./groups";
import type { Cell, Pin, Window_ } from "./heatframe";
import type { Axis } from "./measures";
import type { Scale } from "./scale";
import { chain, feedForward, headScope, resolve, shortName, steps } from "./scopes";
import { stackIn, stackOf, type Stack } from "./stacks";

/** The parts of an item's header that the state depends on. */
export interface Known {
  tokens?: string[];
  layers: number[];
  scopes: string[];
  provenance: Record<string, unknown>;
  sources?: Sequences | null;
  grid?: object | null; // of a picture's patches
  heads?: Record<string, (unknown[] | null)[]>; // by scope and layer
  encoder?: Known | null;
}

export interface Ref {
  item: number;
  stack: Stack;
  layer: number; // place among the stack's layers
  scope: string;
}

/** How many rows and columns are shown. */
export interface Size {
  rows: number;
  columns: number;
}

export type View = "map" | "heads" | "picture" | "compare" | "overview";

export interface State extends Ref {
  sources: Sources;
  view: View;
  direction: Pin["axis"]; // of the token over a picture; that of the pin, if there is one
  form: "heat" | "arcs";
  scale: Scale;
  diagonal: boolean; // whether the pairs i = j are shown
  norm: Axis;
  range: "map" | "layer" | "all";
  palette: Palette;
  special: boolean;
  level: "subwords" | "words";
  names: "plain" | "papers"; // of scopes, in titles and steps
  layers: "one" | "all"; // of the heads that are shown
  head: number | null; // one head instead of their sum
  pin: Pin | null;
  pair: Cell | null;
  zoom: Window_ | null;
  a: Ref;
  b: Ref;
  cnorm: Axis;
}

export const CHOICES = {
  sources: ["both", "encoder", "decoder"],
  view: ["map", "heads", "picture", "compare", "overview"],
  direction: ["row", "column"],
  form: ["heat", "arcs"],
  layers: ["one", "all"],
  scale: ["clipped", "sqrt", "linear", "rank"],
  norm: ["none", "source", "target"],
  range: ["map", "layer", "all"],
  palette: ["viridis", "cividis", "magma", "greys"],
  level: ["subwords", "words"],
  names: ["plain", "papers"],
  cnorm: ["source", "target", "none"],
} as const;

const USUAL: Record<string, string> = {
  stack: "decoder",
  sources: "both",
  view: "map",
  direction: "row",
  form: "heat",
  layers: "one",
  scale: "clipped",
  diagonal: "1",
  norm: "none",
  range: "map",
  palette: "viridis",
  special: "1",
  level: "subwords",
  names: "plain",
  cnorm: "source",
};

/** What is shown unless the address says something else; of a picture its patches. */
function usual(name: string, items: Known[]): string {
  return name === "view" && items[0].grid ? "picture" : USUAL[name];
}

/** A state from an address; whatever does not fit these maps is as usual. */
export function read(given: Record<string, string>, items: Known[]): State {
  const one = <K extends keyof typeof CHOICES>(name: K): (typeof CHOICES)[K][number] => {
    const value = given[name] as (typeof CHOICES)[K][number];
    const known: readonly string[] = CHOICES[name];
    return known.includes(value) ? value : (usual(name, items) as (typeof CHOICES)[K][number]);
  };
  const item = inside(Number(given.item ?? 0), items.length);
  const stack = stackIn(items[item], given.stack);
  const here = { item, stack, ...placeIn(stackOf(items[item], stack), given.layer, given.scope) };
  const [a, b] = comparison(here, items);
  return {
    ...here,
    sources: one("sources"),
    view: one("view"),
    direction: one("direction"),
    form: one("form"),
    layers: one("layers"),
    scale: one("scale"),
    norm: one("norm"),
    range: one("range"),
    palette: one("palette"),
    diagonal: (given.diagonal ?? USUAL.diagonal) !== "0",
    special: (given.special ?? USUAL.special) !== "0",
    level: one("level"),
    names: one("names"),
    head: headIn(stackOf(items[item], stack), here, given.head ? Number(given.head) : null),
    pin: readPin(given.pin),
    pair: readPair(given.pair),
    zoom: readZoom(given.zoom),
    a: readRef(given.a, items) ?? a,
    b: readRef(given.b, items) ?? b,
    cnorm: one("cnorm"),
  };
}

/** A state as the words of an address; what is as usual is left out. */
export function write(state: State, items: Known[]): Record<string, string> {
  const layerOf = ({ item, stack, layer }: Ref) => stackOf(items[item], stack).layers[layer];
  const ref = (of: Ref) => `${of.item}:${layerOf(of)}:${of.scope}${of.stack === "encoder" ? ":encoder" : ""}`;
  const all: Record<string, string> = {
    item: String(state.item),
    stack: state.stack,
    layer: String(layerOf(state)),
    scope: state.scope,
    sources: state.sources,
    view: state.view,
    direction: state.pin === null ? state.direction : USUAL.direction,
    form: state.form,
    layers: state.layers,
    scale: state.scale,
    norm: state.norm,
    range: state.range,
    palette: state.palette,
    diagonal: state.diagonal ? "1" : "0",
    special: state.special ? "1" : "0",
    level: state.level,
    names: state.names,
    cnorm: state.cnorm,
  };
  if (state.head !== null) all.head = String(state.head);
  if (state.pin !== null) all.pin = `${state.pin.axis}:${state.pin.index}`;
  if (state.pair !== null) all.pair = `${state.pair.target}:${state.pair.source}`;
  if (state.zoom !== null) all.zoom = [...state.zoom.rows, ...state.zoom.columns].join(":");
  if (state.view === "compare") [all.a, all.b] = [ref(state.a), ref(state.b)];
  const unusual = ([name, value]: [string, string]) =>
    usual(name, items) !== value && !(name === "item" && value === "0");
  return Object.fromEntries(Object.entries(all).filter(unusual));
}

/** What is compared first: before and after the feed-forward block, or the last step. */
export function comparison(here: Ref, items: Known[]): [Ref, Ref] {
  const { scopes, provenance } = stackOf(items[here.item], here.stack);
  const step =
    feedForward(scopes, String(provenance.components ?? "")) ?? steps(scopes).at(-1) ?? null;
  if (step === null) return [here, here];
  return [
    { ...here, scope: step.before },
    { ...here, scope: step.after },
  ];
}

/** The same state with places that exist, after items or their tokens changed. */
export function fit(state: State, items: Known[], size: Size): State {
  const known = (ref: Ref): boolean => {
    if (ref.item >= items.length || stackIn(items[ref.item], ref.stack) !== ref.stack) return false;
    const { layers, scopes } = stackOf(items[ref.item], ref.stack);
    return ref.layer < layers.length && scopes.includes(ref.scope);
  };
  const here = known(state) ? state : { ...state, ...placeOf(state, items) };
  const first = comparison(here, items);
  const { pair, zoom } = here;
  const pin = here.pin !== null && here.pin.index < size[`${here.pin.axis}s`] ? here.pin : null;
  const { grid } = stackOf(items[here.item], here.stack);
  const within = (window: Window_ | null) =>
    window !== null && window.rows[1] <= size.rows && window.columns[1] <= size.columns;
  return {
    ...here,
    a: known(here.a) ? here.a : first[0],
    b: known(here.b) ? here.b : first[1],
    view: here.view === "picture" && !grid ? "map" : here.view,
    direction: pin?.axis ?? here.direction,
    head: headIn(stackOf(items[here.item], here.stack), here, here.head),
    pin,
    pair: pair !== null && pair.target < size.rows && pair.source < size.columns ? pair : null,
    zoom: within(zoom) ? zoom : null,
  };
}

/** A head, if the place has maps of it; else none. */
function headIn({ heads = {} }: Known, { scope, layer }: Pick<Ref, "scope" | "layer">, head: number | null): number | null {
  const count = heads[headScope(scope)]?.[layer]?.length ?? 0;
  return head !== null && Number.isInteger(head) && head >= 0 && head < count ? head : null;
}

/** The place in another stack of an item that is most like one: the same layer and component. */
export function counterpart(here: Ref, stack: Stack, items: Known[]): Ref {
  return likewise(here, { item: here.item, stack }, items);
}

/** The place in another item or stack that is most like one: the same layer and component. */
export function likewise(here: Ref, other: { item: number; stack: Stack }, items: Known[]): Ref {
  const stack = stackIn(items[other.item], other.stack);
  const from = stackOf(items[here.item], here.stack);
  const to = stackOf(items[other.item], stack);
  const scope =
    resolve(here.scope, to.scopes) ?? resolve(shortName(here.scope, from.scopes), to.scopes) ??
    (chain(to.scopes).at(-1) as string);
  return { item: other.item, stack, layer: Math.min(here.layer, to.layers.length - 1), scope };
}

function placeOf(state: State, items: Known[]): Ref {
  const item = inside(state.item, items.length);
  const stack = stackIn(items[item], state.stack);
  const { layers, scopes } = stackOf(items[item], stack);
  const scope = scopes.includes(state.scope) ? state.scope : (chain(scopes).at(-1) as string);
  return { item, stack, layer: inside(state.layer, layers.length), scope };
}

function placeIn(item: Known, layer: string | undefined, scope: string | undefined) {
  const at = item.layers.indexOf(Number(layer));
  return { layer: at < 0 ? 0 : at, scope: resolve(scope ?? "", item.scopes) ?? firstScope(item) };
}

/** The first scope with norms; where sources are two sequences, the first that has parts of both. */
function firstScope({ scopes, sources }: Known): string {
  const both = (scope: string) => (sources?.held[scope] ?? []).length > 1;
  const norms = chain(scopes).filter((scope) => scope.endsWith("-N"));
  return norms.find(both) ?? norms[0] ?? scopes[0];
}

function readRef(text: string | undefined, items: Known[]): Ref | null {
  const match = /^(\d+):(\d+):([^:]+?)(?::(encoder|decoder))?$/.exec(text ?? "");
  if (match === null) return null;
  const item = items[Number(match[1])];
  if (item === undefined) return null;
  const stack = stackIn(item, match[4]);
  const { layers, scopes } = stackOf(item, stack);
  const layer = layers.indexOf(Number(match[2]));
  const scope = resolve(match[3], scopes);
  return layer < 0 || scope === null ? null : { item: Number(match[1]), stack, layer, scope };
}

function readPin(text: string | undefined): Pin | null {
  const match = /^(row|column):(\d+)$/.exec(text ?? "");
  return match && { axis: match[1] as Pin["axis"], index: Number(match[2]) };
}

function readPair(text: string | undefined): Cell | null {
  const match = /^(\d+):(\d+)$/.exec(text ?? "");
  return match && { target: Number(match[1]), source: Number(match[2]) };
}

function readZoom(text: string | undefined): Window_ | null {
  const match = /^(\d+):(\d+):(\d+):(\d+)$/.exec(text ?? "");
  if (match === null) return null;
  const [r0, r1, c0, c1] = match.slice(1).map(Number);
  return r0 < r1 && c0 < c1 ? { rows: [r0, r1], columns: [c0, c1] } : null;
}

function inside(value: number, size: number): number {
  return Number.isInteger(value) && value >= 0 && value < size ? value : 0;
}
