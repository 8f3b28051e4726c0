// Where a colour scale ends, and what lies beyond it: as in normlens.figures.colour_scales.

import type { Mask } from "./measures";

/** "clipped" is a square root, too; outliers and i = j do not stretch it. */
export type Scale = "clipped" | "sqrt" | "linear" | "rank";

/** Scales in words. */
export const SCALE_WORDS: Record<Scale, string> = {
  clipped: "clipped square-root scale",
  sqrt: "square-root scale",
  linear: "linear scale",
  rank: "scale of ranks",
};

/** How the colour of what is beyond a scale is called. */
export function beyondWord(palette: string): string {
  return palette === "magma" ? "blue" : "red";
}

const TIMES = 4; // so that the 90th percentile stands in the middle of a square-root scale
const FEWEST = 3; // pairs that may be beyond the end in a short text; else one in fifty

/** Which pairs of a map count, and which of them are of a token with itself. */
export interface Pairs {
  mask: Mask;
  same: ArrayLike<number>;
  diagonal: boolean; // whether the pairs i = j are shown
}

/** Whether a pair has a colour. */
export function isShown({ mask, same, diagonal }: Pairs, k: number): boolean {
  return (mask === null || mask[k] > 0) && (diagonal || !same[k]);
}

/** Where the clipped scale of some pairs of two different tokens ends; 0 without a finite one.
 *
 * min(max, 4 · 90th percentile), but high enough that at most 2 % of the pairs (in short texts three) are beyond
 * it. Percentiles are values of the list: the k-th smallest, k = ⌈0.9 m⌉.
 */
export function clippedEnd(values: Float32Array): number {
  const finite = values.filter(Number.isFinite);
  const m = finite.length;
  if (m === 0) return 0;
  const most = finite.reduce((a, b) => Math.max(a, b));
  const percentile = smallest(finite, Math.floor((9 * m + 9) / 10) - 1);
  const least = smallest(finite, Math.max(0, m - 1 - Math.max(FEWEST, Math.floor(m / 50))));
  const end = Math.max(least, Math.min(most, TIMES * percentile));
  return end > 0 ? end : most;
}

/** The top of a map's colour scale; 1 where nothing is above 0. */
export function scaleEnd(map: Float32Array, pairs: Pairs, scale: Scale): number {
  if (scale === "clipped") {
    const others = map.filter((_, k) => isShown(pairs, k) && !pairs.same[k]);
    const end = clippedEnd(others);
    if (end > 0) return end;
  }
  let top = 0;
  for (let k = 0; k < map.length; k++) if (map[k] > top && map[k] < Infinity && isShown(pairs, k)) top = map[k];
  return top > 0 ? top : 1;
}

/** The k-th smallest value, from 0. The values are put into another order. */
function smallest(values: Float32Array, k: number): number {
  let [left, right] = [0, values.length - 1];
  while (left < right) {
    const middle = values[(left + right) >> 1];
    let [i, j] = [left, right];
    while (i <= j) {
      while (values[i] < middle) i++;
      while (values[j] > middle) j--;
      if (i > j) break;
      [values[i], values[j]] = [values[j], values[i]];
      i++;
      j--;
    }
    if (k <= j) right = j;
    else if (k >= i) left = i;
    else break;
  }
  return values[k];
}

/** How many pairs are beyond the end of a scale: of two tokens, and of one with itself. */
export function beyond(map: Float32Array, pairs: Pairs, end: number): { others: number; same: number; largest: number } {
  const found = { others: 0, same: 0, largest: end };
  for (let k = 0; k < map.length; k++) {
    if (!(map[k] > end) || !isShown(pairs, k)) continue;
    found[pairs.same[k] ? "same" : "others"]++;
    found.largest = Math.max(found.largest, map[k]);
  }
  return found;
}
