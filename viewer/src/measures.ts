// The measures of the papers on decoded maps [target, source], in row order, as in normlens.analysis.

export type Axis = "source" | "target" | "none";
export type Mask = Uint8Array | null; // null: every pair is allowed

/** Scales a map so that each source's column, or each target's row, sums to 1. */
export function normalise(map: Float32Array, width: number, axis: Axis): Float32Array {
  if (axis === "none") return map;
  const height = map.length / width;
  const sums = new Float64Array(Math.max(width, height));
  for (let i = 0, k = 0; i < height; i++) {
    for (let j = 0; j < width; j++, k++) sums[axis === "source" ? j : i] += map[k];
  }
  const scaled = new Float32Array(map.length);
  for (let i = 0, k = 0; i < height; i++) {
    for (let j = 0; j < width; j++, k++) {
      const sum = sums[axis === "source" ? j : i];
      scaled[k] = sum > 0 ? map[k] / sum : 0;
    }
  }
  return scaled;
}

/** `b − a`, both normalised: FF-amp where b is the map after the feed-forward block. */
export function difference(a: Float32Array, b: Float32Array, width: number, axis: Axis): Float32Array {
  return subtract(normalise(a, width, axis), normalise(b, width, axis));
}

/** `after − before`. */
export function subtract(before: Float32Array, after: Float32Array): Float32Array {
  const change = new Float32Array(after.length);
  for (let k = 0; k < change.length; k++) change[k] = after[k] - before[k];
  return change;
}

/** A pair's share of its source's column. */
export function columnShare(map: Float32Array, width: number, target: number, source: number): number {
  let sum = 0;
  for (let k = source; k < map.length; k += width) sum += map[k];
  return sum > 0 ? map[target * width + source] / sum : 0;
}

/** A pair's share of its target's row. */
export function rowShare(map: Float32Array, width: number, target: number, source: number): number {
  let sum = 0;
  for (let k = target * width; k < (target + 1) * width; k++) sum += map[k];
  return sum > 0 ? map[target * width + source] / sum : 0;
}

/** The values of the pairs that count. */
export function allowedValues(map: Float32Array, mask: Mask): Float32Array {
  if (mask === null) return map;
  const values = new Float32Array(map.length);
  let size = 0;
  for (let k = 0; k < map.length; k++) if (mask[k]) values[size++] = map[k];
  return values.subarray(0, size);
}

/**
 * `2 · rank − (p + 1)` of each value, ties by average rank; null where a value is NaN.
 * Twice a centred average rank is a whole number.
 */
export function centredRanks(values: Float32Array): Int32Array | null {
  const size = values.length;
  for (let k = 0; k < size; k++) if (values[k] !== values[k]) return null;
  const order = sortedOrder(values);
  const ranks = new Int32Array(size);
  for (let start = 0; start < size; ) {
    let end = start + 1;
    while (end < size && values[order[end]] === values[order[start]]) end++;
    const rank = start + end - size; // the mean of ranks start + 1 … end, twice, less p + 1
    for (let k = start; k < end; k++) ranks[order[k]] = rank;
    start = end;
  }
  return ranks;
}

/** The same ranks from codes of 16 bits that are in the order of the values; the last means NaN. */
export function ranksOfCodes(codes: Uint16Array): Int32Array | null {
  const size = codes.length;
  const count = new Uint32Array(65536);
  for (let k = 0; k < size; k++) count[codes[k]]++;
  if (count[65535] > 0) return null;
  const rankOf = new Int32Array(65536);
  for (let code = 0, start = 0; code < 65535; code++) {
    rankOf[code] = 2 * start + count[code] - size;
    start += count[code];
  }
  const ranks = new Int32Array(size);
  for (let k = 0; k < size; k++) ranks[k] = rankOf[codes[k]];
  return ranks;
}

/** Positions in ascending order of value: a radix sort of the floats' bits in two passes. */
function sortedOrder(values: Float32Array): Uint32Array {
  const size = values.length;
  const keys = new Uint32Array(values.slice().buffer);
  for (let k = 0; k < size; k++) {
    if (values[k] === 0) keys[k] = 0; // −0 and 0 are equal
    // Bits of positive floats are in order; those of negative ones in reverse.
    keys[k] = keys[k] & 0x80000000 ? ~keys[k] : keys[k] | 0x80000000;
  }
  let order = new Uint32Array(size);
  for (let k = 0; k < size; k++) order[k] = k;
  if (size < 2048) return order.sort((x, y) => keys[x] - keys[y]);
  const count = new Uint32Array(65537);
  let next = new Uint32Array(size);
  for (const shift of [0, 16]) {
    count.fill(0);
    for (let k = 0; k < size; k++) count[((keys[k] >>> shift) & 0xffff) + 1]++;
    for (let digit = 0; digit < 65536; digit++) count[digit + 1] += count[digit];
    for (let k = 0; k < size; k++) {
      const position = order[k];
      next[count[(keys[position] >>> shift) & 0xffff]++] = position;
    }
    [order, next] = [next, order];
  }
  return order;
}

/** Spearman's ρ of two maps whose ranks are given; NaN where one is constant or has a NaN. */
export function correlation(a: Int32Array | null, b: Int32Array | null): number {
  if (a === null || b === null || a.length !== b.length) return NaN;
  let ab = 0;
  let aa = 0;
  let bb = 0;
  for (let k = 0; k < a.length; k++) {
    ab += a[k] * b[k];
    aa += a[k] * a[k];
    bb += b[k] * b[k];
  }
  return aa > 0 && bb > 0 ? Math.max(-1, Math.min(1, ab / Math.sqrt(aa * bb))) : NaN;
}

export function spearman(a: Float32Array, b: Float32Array, mask: Mask): number {
  return correlation(centredRanks(allowedValues(a, mask)), centredRanks(allowedValues(b, mask)));
}

export interface Pair {
  target: number;
  source: number;
  value: number;
}

/** The largest and the smallest values of pairs of two different tokens. */
export function extremePairs(
  map: Float32Array,
  width: number,
  mask: Mask,
  same: Uint8Array,
  top: number,
): { largest: Pair[]; smallest: Pair[] } {
  const largest = new Best(top);
  const smallest = new Best(top);
  for (let k = 0; k < map.length; k++) {
    if (same[k] || (mask !== null && !mask[k])) continue;
    largest.offer(map[k], k);
    smallest.offer(-map[k], k);
  }
  const pairs = (best: Best): Pair[] =>
    best.places().map((k) => ({ target: Math.floor(k / width), source: k % width, value: map[k] }));
  return { largest: pairs(largest), smallest: pairs(smallest) };
}

/** The few largest of many values, in order. */
class Best {
  private readonly found: [number, number][] = [];

  constructor(private readonly size: number) {}

  offer(value: number, place: number): void {
    const { found, size } = this;
    if (!(value > -Infinity)) return;
    if (found.length === size && value <= found[size - 1][0]) return;
    let at = found.length;
    while (at > 0 && found[at - 1][0] < value) at--;
    found.splice(at, 0, [value, place]);
    if (found.length > size) found.pop();
  }

  places(): number[] {
    return this.found.map(([, place]) => place);
  }
}

/** Merges tokens into words: columns of a word summed, rows averaged. */
export function mergeWords(map: ArrayLike<number>, width: number, columns: number[][], rows = columns): Float32Array {
  const size = columns.length;
  const word = new Int32Array(width);
  columns.forEach((group, index) => group.forEach((token) => (word[token] = index)));
  const sums = new Float64Array(rows.length * size);
  rows.forEach((group, index) => {
    for (const i of group) {
      for (let j = 0, k = i * width; j < width; j++, k++) sums[index * size + word[j]] += map[k] / group.length;
    }
  });
  return Float32Array.from(sums);
}

/** Some rows and columns only. */
export function pick(map: Float32Array, width: number, columns: number[], rows = columns): Float32Array {
  const size = columns.length;
  const picked = new Float32Array(rows.length * size);
  for (let i = 0; i < rows.length; i++) {
    for (let j = 0; j < size; j++) picked[i * size + j] = map[rows[i] * width + columns[j]];
  }
  return picked;
}
