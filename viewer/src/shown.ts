// Maps as they are looked at: all tokens or without special ones, subwords or words.

import {
  Mask,
  allowedValues,
  centredRanks,
  correlation,
  largestValue,
  mergeWords,
  normalise,
  pick,
  ranksOfCodes,
  type Axis,
} from "./measures";
import { Item } from "./payload";

export class Shown {
  readonly labels: string[];
  readonly special: boolean[];
  readonly positions: number[]; // of the first token of each row, in the text
  private readonly groups: number[][] | null;
  private readonly keep: number[] | null;
  private readonly masks = new Map<number, Mask>();
  private readonly maps = new Map<string, Promise<Float32Array>>();
  private readonly ranked = new Map<string, Promise<Int32Array | null>>();

  constructor(
    readonly item: Item,
    readonly withSpecial: boolean,
    readonly words: boolean,
  ) {
    const { header } = item;
    let labels = header.labels;
    let special = header.special;
    let positions = header.tokens.map((_, k) => k);
    this.groups = words && header.words !== null ? wordGroups(header.words) : null;
    if (this.groups !== null) {
      const first = this.groups.map((group) => group[0]);
      labels = first.map((token) => {
        const word = header.words?.[token];
        return word === null || word === undefined ? header.labels[token] : header.word_labels[word];
      });
      special = first.map((token) => header.special[token]);
      positions = first;
    }
    const ordinary = labels.map((_, k) => k).filter((k) => !special[k]);
    const drop = !withSpecial && ordinary.length > 0 && ordinary.length < labels.length;
    this.keep = drop ? ordinary : null;
    const chosen = this.keep ?? labels.map((_, k) => k);
    this.labels = chosen.map((k) => labels[k]);
    this.special = chosen.map((k) => special[k]);
    this.positions = chosen.map((k) => positions[k]);
  }

  get n(): number {
    return this.labels.length;
  }

  get scopes(): string[] {
    return this.item.header.scopes;
  }

  get layers(): number[] {
    return this.item.header.layers;
  }

  /** Tokens as they are, so that maps are the item's own. */
  private get plain(): boolean {
    return this.groups === null && this.keep === null;
  }

  mask(layer: number): Mask {
    let found = this.masks.get(layer);
    if (found === undefined) {
      found = this.item.mask(layer);
      let size = this.item.n;
      if (found !== null && this.groups !== null) {
        found = Uint8Array.from(mergeWords(found, size, this.groups), (share) => (share > 0 ? 1 : 0));
        size = this.groups.length;
      }
      if (found !== null && this.keep !== null) found = pick(found, size, this.keep);
      this.masks.set(layer, found);
    }
    return found;
  }

  map(scope: string, layer: number): Promise<Float32Array> {
    if (this.plain) return this.item.map(scope, layer);
    return remember(this.maps, `${scope}/${layer}`, this.most, async () => {
      let map = await this.item.map(scope, layer);
      let size = this.item.n;
      if (this.groups !== null) {
        map = mergeWords(map, size, this.groups);
        size = this.groups.length;
      }
      return this.keep === null ? map : pick(map, size, this.keep);
    });
  }

  async normalised(scope: string, layer: number, axis: Axis): Promise<Float32Array> {
    return normalise(await this.map(scope, layer), this.n, axis);
  }

  /** Spearman's ρ of two scopes of a layer over the pairs that attention allows. */
  async rho(layer: number, a: string, b: string): Promise<number> {
    return correlation(await this.ranks(a, layer), await this.ranks(b, layer));
  }

  private ranks(scope: string, layer: number): Promise<Int32Array | null> {
    return remember(this.ranked, `${scope}/${layer}`, this.most, async () => {
      const codes = this.plain ? await this.item.codes(scope, layer) : null;
      if (codes !== null) return ranksOfCodes(codes);
      return centredRanks(allowedValues(await this.map(scope, layer), this.mask(layer)));
    });
  }

  /** The largest value of some maps: the shared top of their colour scale. */
  async top(scopes: string[], layers: number[], axis: Axis): Promise<number> {
    let top = 0;
    for (const layer of layers) {
      for (const scope of scopes) {
        const map = await this.normalised(scope, layer, axis);
        top = Math.max(top, largestValue(map, this.mask(layer)));
      }
    }
    return top;
  }

  /** Mixing ratios [layer, target]; words have none, because they belong to tokens. */
  async mixing(scope: string): Promise<Float32Array | null> {
    if (this.groups !== null) return null;
    const all = await this.item.mixing(scope);
    if (all === null || this.keep === null) return all;
    const { keep } = this;
    const n = this.item.n;
    const picked = new Float32Array(this.layers.length * keep.length);
    this.layers.forEach((_, layer) =>
      keep.forEach((token, k) => (picked[layer * keep.length + k] = all[layer * n + token])),
    );
    return picked;
  }

  private get most(): number {
    return Math.max(32, Math.floor(1.2e8 / (4 * this.n * this.n)));
  }
}

function remember<T>(
  kept: Map<string, Promise<T>>,
  key: string,
  most: number,
  make: () => Promise<T>,
): Promise<T> {
  let found = kept.get(key);
  if (found === undefined) {
    found = make();
    if (kept.size >= most) kept.delete(kept.keys().next().value as string);
    kept.set(key, found);
  }
  return found;
}

/** Tokens of each word; a token without a word stays alone. */
export function wordGroups(words: (number | null)[]): number[][] {
  const groups = new Map<number | string, number[]>();
  words.forEach((word, token) => {
    const key = word ?? `token ${token}`;
    const group = groups.get(key);
    if (group === undefined) groups.set(key, [token]);
    else group.push(token);
  });
  return [...groups.values()];
}
