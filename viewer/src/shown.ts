// Maps as they are looked at: all tokens or without special ones, subwords or words, one sequence's columns or both.

import { ShownAxis } from "./axes";
import { areTwo, groupsOf, ofSequences, type Group, type Sources } from "./groups";
import {
  Mask,
  allowedValues,
  centredRanks,
  correlation,
  mergeWords,
  normalise,
  pick,
  ranksOfCodes,
  type Axis,
} from "./measures";
import { Item } from "./payload";
import { scaleEnd, type Pairs, type Scale } from "./scale";
import { headScope } from "./scopes";

/** How maps are coloured. */
export interface Look {
  norm: Axis;
  scale: Scale;
  diagonal: boolean;
}

export class Shown {
  readonly rows: ShownAxis;
  readonly columns: ShownAxis;
  /** Columns by their sequence; empty where the columns are the rows' tokens. */
  readonly groups: Group[];
  /** [target, source], whether both are the same token. */
  readonly same: Uint8Array;
  private readonly two: boolean;
  private readonly masks = new Map<string, Mask>();
  private readonly maps = new Map<string, Promise<Float32Array>>();
  private readonly ranked = new Map<string, Promise<Int32Array | null>>();

  constructor(
    readonly item: Item,
    withSpecial: boolean,
    words: boolean,
    sources: Sources = "both",
  ) {
    const { header } = item;
    this.two = areTwo(header.sources?.sequences ?? []);
    const asWords = words && item.hasWords;
    const sequence = this.two && sources !== "both" ? sources : null;
    this.rows = new ShownAxis(header, withSpecial, asWords);
    this.columns = header.sources === null ? this.rows : new ShownAxis(header.sources, withSpecial, asWords, sequence);
    this.groups = groupsOf(this.columns.sequences);
    this.same = this.reducedMask(item.same);
  }

  get scopes(): string[] {
    return this.item.header.scopes;
  }

  get layers(): number[] {
    return this.item.header.layers;
  }

  /** Tokens as they are, so that maps are the item's own. */
  private get plain(): boolean {
    return this.rows.plain && this.columns.plain;
  }

  /** The pairs that attention allows and that any of some scopes has a part of; without scopes, all allowed ones. */
  mask(layer: number, ...scopes: string[]): Mask {
    const held = this.held(scopes);
    const key = `${layer}/${held ?? ""}`;
    let found = this.masks.get(key);
    if (found === undefined) {
      const whole = this.item.mask(layer);
      found = whole === null ? null : this.reducedMask(whole);
      if (held !== null) found = ofSequences(found, this.rows.size, this.columns.sequences, (name) => held.includes(name));
      this.masks.set(key, found);
    }
    return found;
  }

  /** Whether a scope has parts of a sequence. */
  has(scope: string, sequence: string | undefined): boolean {
    return sequence === undefined || (this.item.header.sources?.held[scope] ?? [sequence]).includes(sequence);
  }

  /** The sequences that any of some scopes has parts of; null: all, or there is one alone. */
  private held(scopes: string[]): string[] | null {
    if (!this.two || scopes.length === 0) return null;
    const names = [...new Set(this.item.header.sources?.sequences)];
    const held = names.filter((name) => scopes.some((scope) => this.has(scope, name)));
    return held.length < names.length ? held : null;
  }

  map(scope: string, layer: number): Promise<Float32Array> {
    if (this.plain) return this.item.map(scope, layer);
    return remember(this.maps, `${scope}/${layer}`, this.most, async () => this.reduced(await this.item.map(scope, layer)));
  }

  async normalised(scope: string, layer: number, axis: Axis): Promise<Float32Array> {
    return normalise(await this.map(scope, layer), this.columns.size, axis);
  }

  /** Spearman’s ρ of two scopes of a layer over the pairs that either has, of those that attention allows. */
  async rho(layer: number, a: string, b: string): Promise<number> {
    return correlation(await this.ranks(a, layer, [a, b]), await this.ranks(b, layer, [a, b]));
  }

  private ranks(scope: string, layer: number, scopes: string[]): Promise<Int32Array | null> {
    const held = this.held(scopes);
    return remember(this.ranked, `${scope}/${layer}/${held ?? ""}`, this.most, async () => {
      const codes = this.plain && held === null ? await this.item.codes(scope, layer) : null;
      if (codes !== null) return ranksOfCodes(codes);
      return centredRanks(allowedValues(await this.map(scope, layer), this.mask(layer, ...scopes)));
    });
  }

  /** Which pairs of a map have colours. */
  pairs(layer: number, scope: string, diagonal: boolean): Pairs {
    return { mask: this.mask(layer, scope), same: this.same, diagonal };
  }

  /** The shared end of the colour scales of some maps. */
  async end(scopes: string[], layers: number[], { norm, scale, diagonal }: Look): Promise<number> {
    let end = 0;
    for (const layer of layers) {
      for (const scope of scopes) {
        const map = await this.normalised(scope, layer, norm);
        end = Math.max(end, scaleEnd(map, this.pairs(layer, scope, diagonal), scale));
      }
    }
    return end;
  }

  /** How many heads a layer of a scope has; 0 where there are no maps of them. */
  heads(scope: string, layer: number): number {
    return this.item.heads(headScope(scope), layer)?.length ?? 0;
  }

  /** The map of a single head. */
  async head(scope: string, layer: number, head: number, axis: Axis): Promise<Float32Array> {
    const name = headScope(scope);
    const map = this.plain
      ? await this.item.head(name, layer, head)
      : await remember(this.maps, `${name}/${layer}#${head}`, this.most, async () =>
          this.reduced(await this.item.head(name, layer, head)),
        );
    return normalise(map, this.columns.size, axis);
  }

  /** Mixing ratios [layer, target]; words have none, because they belong to tokens. */
  async mixing(scope: string): Promise<Float32Array | null> {
    const { keep, groups } = this.rows;
    if (groups !== null) return null;
    const all = await this.item.mixing(scope);
    if (all === null || keep === null) return all;
    const n = this.item.height;
    const picked = new Float32Array(this.layers.length * keep.length);
    this.layers.forEach((_, layer) =>
      keep.forEach((token, k) => (picked[layer * keep.length + k] = all[layer * n + token])),
    );
    return picked;
  }

  /** An item's map with tokens merged into words and some left out. */
  private reduced(map: Float32Array): Float32Array {
    const { rows, columns } = this;
    const each = (axis: ShownAxis, size: number) => axis.groups ?? Array.from({ length: size }, (_, k) => [k]);
    let width = this.item.width;
    if (rows.groups !== null || columns.groups !== null) {
      const merged = each(columns, width);
      map = mergeWords(map, width, merged, each(rows, this.item.height));
      width = merged.length;
    }
    const all = (size: number) => Array.from({ length: size }, (_, k) => k);
    if (rows.keep === null && columns.keep === null) return map;
    return pick(map, width, columns.keep ?? all(width), rows.keep ?? all(map.length / width));
  }

  /** The same of pairs: words have those that any of their tokens have. */
  private reducedMask(mask: Uint8Array): Uint8Array {
    if (this.plain) return mask;
    return Uint8Array.from(this.reduced(Float32Array.from(mask)), (share) => (share > 0 ? 1 : 0));
  }

  private get most(): number {
    return Math.max(32, Math.floor(1.2e8 / (4 * this.rows.size * this.columns.size)));
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
