// Flow maps as a graph: which edges are drawn, and which of them lie on a token's way.

export interface Edge {
  layer: number; // it goes from a vector that enters this layer to one that leaves it
  target: number;
  source: number;
  value: number;
}

export interface Drawn {
  edges: Edge[]; // the strongest first
  share: number; // of everything that flows, whatever its sign
  count: number; // edges that carry anything
  total: number; // what all of them carry
}

const BINS = 512;

/** The strongest edges of a flow picture.
 *
 * Most of a score stays where it is, so edges that stay and edges that cross are thinned apart: of both
 * as many as carry a share of what their kind carries, and of those that cross at most so many.
 */
export function picked(flow: Float32Array[], n: number, share: number, most: number): Drawn {
  const stays = (keep: boolean) => flow.map((map) => map.map((value, k) => ((Math.floor(k / n) === k % n) === keep ? value : 0)));
  const staying = strongest(stays(true), n, share, Infinity);
  const crossing = strongest(stays(false), n, share, most);
  const edges = [...staying.edges, ...crossing.edges].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const total = staying.total + crossing.total;
  const carried = staying.share * staying.total + crossing.share * crossing.total;
  return { edges, share: total > 0 ? carried / total : 1, count: staying.count + crossing.count, total };
}

/** The strongest edges: as many as carry a share of all that flows, but at most so many. */
export function strongest(flow: Float32Array[], n: number, share: number, most: number): Drawn {
  let top = 0;
  let total = 0;
  let count = 0;
  for (const map of flow) {
    for (const value of map) {
      const size = Math.abs(value);
      if (!(size > 0)) continue;
      top = Math.max(top, size);
      total += size;
      count++;
    }
  }
  if (count === 0) return { edges: [], share: 1, count: 0, total };
  const least = threshold(flow, top, share * total, most);
  let edges: Edge[] = [];
  flow.forEach((map, layer) => {
    for (let k = 0; k < map.length; k++) {
      if (Math.abs(map[k]) >= least) edges.push({ layer, target: Math.floor(k / n), source: k % n, value: map[k] });
    }
  });
  edges.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  let carried = 0;
  let kept = 0;
  while (kept < edges.length && kept < most && carried < share * total) carried += Math.abs(edges[kept++].value);
  edges = edges.slice(0, kept);
  return { edges, share: carried / total, count, total };
}

/** A size below which no edge is needed, found without sorting them all. */
function threshold(flow: Float32Array[], top: number, wanted: number, most: number): number {
  const sums = new Float64Array(BINS);
  const counts = new Uint32Array(BINS);
  const floor = Math.log(top) - 24; // e⁻²⁴ of the largest is nothing that could be seen
  const bin = (size: number) => Math.max(0, Math.min(BINS - 1, Math.floor(((Math.log(size) - floor) / 24) * BINS)));
  for (const map of flow) {
    for (const value of map) {
      const size = Math.abs(value);
      if (!(size > 0)) continue;
      const at = bin(size);
      sums[at] += size;
      counts[at]++;
    }
  }
  let carried = 0;
  let kept = 0;
  for (let at = BINS - 1; at > 0; at--) {
    carried += sums[at];
    kept += counts[at];
    // A hair below the bin's lower end, which rounding may have put into it.
    if (carried >= wanted || kept >= most) return Math.exp(floor + (24 * at) / BINS) * (1 - 1e-9);
  }
  return Number.MIN_VALUE;
}

/** Which edges lie on ways that begin at a token of the input. */
export function onTheWay(edges: Edge[], token: number, layers: number): boolean[] {
  let reached = new Set([token]);
  const byLayer: number[][] = Array.from({ length: layers }, () => []);
  edges.forEach((edge, k) => byLayer[edge.layer].push(k));
  const marks = edges.map(() => false);
  for (const places of byLayer) {
    const next = new Set<number>();
    for (const k of places) {
      if (!reached.has(edges[k].source)) continue;
      marks[k] = true;
      next.add(edges[k].target);
    }
    reached = next;
  }
  return marks;
}

/** The strongest edges between two different tokens, among those that `wanted` accepts. */
export function crossings(
  flow: Float32Array[],
  n: number,
  count: number,
  wanted: (target: number, source: number) => boolean = () => true,
): Edge[] {
  const best: Edge[] = [];
  flow.forEach((map, layer) => {
    for (let target = 0; target < n; target++) {
      for (let source = 0; source < n; source++) {
        const value = map[target * n + source];
        if (target === source || !(Math.abs(value) > 0) || !wanted(target, source)) continue;
        if (best.length === count && Math.abs(value) <= Math.abs(best[count - 1].value)) continue;
        const at = best.findIndex((edge) => Math.abs(edge.value) < Math.abs(value));
        best.splice(at < 0 ? best.length : at, 0, { layer, target, source, value });
        if (best.length > count) best.pop();
      }
    }
  });
  return best;
}
