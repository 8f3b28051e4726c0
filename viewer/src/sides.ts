// The two maps of a comparison: what they have in common, and what each has of its own.

import type { ShownAxis } from "./axes";
import { number } from "./colours";
import { groupAt } from "./groups";
import { placeOf, sourceName, targetName, type Cell, type Heat } from "./heatframe";
import type { Mask } from "./measures";
import type { Pairs } from "./scale";
import type { Shown } from "./shown";
import type { State } from "./state";

/** One of the two maps. */
export interface Side {
  letter: "A" | "B";
  shown: Shown;
  map: Float32Array;
  pairs: Pairs;
  what: string;
  title: string;
  subtitle: string;
  labels: Pick<Heat, "rows" | "columns" | "special">;
  alone: boolean; // whether its places mean nothing in the other map
}

/** Gives two maps of one size the labels of both texts, and the pairs that both allow. */
export function alignSides({ A, B }: { A: Side; B: Side }, a: Shown, b: Shown, state: State): void {
  const scopes = [state.a.scope, state.b.scope];
  const mask = both(a.mask(state.a.layer, ...scopes), b.mask(state.b.layer, ...scopes));
  const labels = {
    rows: bothLabels(a.rows, b.rows),
    columns: bothLabels(a.columns, b.columns),
    special: { rows: bothSpecial(a.rows, b.rows), columns: bothSpecial(a.columns, b.columns) },
  };
  for (const side of [A, B]) {
    side.pairs = { ...side.pairs, mask: both(mask, side.pairs.mask) };
    Object.assign(side, { labels, alone: false });
  }
}

/** A pair of a map that stands beside one of another size. */
export function aloneLines(heat: Heat, cell: Cell): string[] {
  const k = placeOf(heat, cell);
  const allowed = heat.mask === null || heat.mask[k];
  return [
    `source ${sourceName(heat, cell.source)} (${cell.source - (groupAt(heat.groups, cell.source)?.from ?? 0)})`,
    `target ${targetName(heat, cell.target)} (${cell.target})`,
    allowed ? `${heat.name} ${number(heat.map[k])}` : "no attention",
  ];
}

/** Labels of two axes of one length; where they differ, both. */
function bothLabels({ labels: a }: ShownAxis, { labels: b }: ShownAxis): string[] {
  return a === b ? a : a.map((label, k) => (label === b[k] ? label : `${label} / ${b[k]}`));
}

function bothSpecial({ special: a }: ShownAxis, { special: b }: ShownAxis): boolean[] {
  return a.map((flag, k) => flag && b[k]);
}

/** The pairs that both masks allow. */
export function both(a: Mask, b: Mask): Mask {
  if (a === null || b === null || a === b) return a ?? b;
  return a.map((flag, k) => flag & b[k]);
}
