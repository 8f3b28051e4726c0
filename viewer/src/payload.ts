// Reads what normlens.viewer.payload writes; see CONTRACT.md.

import type { Tokens } from "./axes";
import { contents, expect, floats, inflate, Packer, stored, wideCodes, type Blob_, type Source } from "./container";
import type { Sequences } from "./groups";

/** Which tokens are patches of a picture: patch (r, c) is token first + r·columns + c. */
export interface Grid {
  rows: number;
  columns: number;
  first: number;
  picture: { height: number; width: number; pixels: Blob_ } | null;
}

/** What the patches cover, RGB. */
export interface Picture {
  height: number;
  width: number;
  pixels: Uint8Array;
}

interface Routed<Array> {
  layers: number[]; // those that have experts, by the model's numbers
  count: number; // experts of a layer, without a shared one
  places: number; // experts that a token uses, without a shared one
  experts: Array; // [layer, token, place]
  weights: Array;
  shared: Array | null; // [layer, token]
}

export type Routing = Routed<Float32Array>;

export interface ItemHeader extends Tokens {
  model: string;
  text: string[] | null;
  stack: string | null; // of an encoder–decoder
  sources: (Tokens & Sequences) | null; // null: the sources are the targets' tokens
  same_token: Blob_ | null;
  layers: number[];
  scopes: string[];
  completeness: number | null;
  provenance: Record<string, unknown>;
  masks: ("all" | "lower" | Blob_)[];
  allowed: number[];
  maps: Record<string, Blob_[]>;
  derived: Record<string, string>;
  mixing: Record<string, Blob_>;
  /** Of single heads: by scope, layer and head; null for layers without. */
  heads: Record<string, (Blob_[] | null)[]>;
  precision: { bits: number; relative_error: number; head_bits: number; head_relative_error: number };
  left_out: string[];
  grid: Grid | null;
  routing: Routed<Blob_> | null;
  encoder: ItemHeader | null; // the encoder's maps beside these, which are its decoder's
}

interface Decoded {
  map: Float32Array;
  codes: Uint16Array | null;
}

/** One analysed text: its header, and its maps as they are asked for; of two stacks, the decoder's. */
export class Item {
  readonly height: number; // targets
  readonly width: number; // sources
  readonly encoder: Item | null;
  /** [target, source], whether both are the same token. */
  same = new Uint8Array();
  private readonly kept = new Map<string, Promise<Decoded>>();
  private masks: (Uint8Array | null)[] = [];

  constructor(
    readonly header: ItemHeader,
    readonly source: Source,
    private readonly start: number,
  ) {
    this.height = header.tokens.length;
    this.width = (header.sources ?? header).tokens.length;
    this.encoder = header.encoder === null ? null : new Item(header.encoder, source, start);
  }

  /** Whether the words of all tokens are known. */
  get hasWords(): boolean {
    return this.header.words !== null && (this.header.sources ?? this.header).words !== null;
  }

  async open(): Promise<Item> {
    this.masks = await Promise.all(this.header.masks.map((mask) => this.readMask(mask)));
    this.same = await this.readSame();
    await this.encoder?.open();
    return this;
  }

  /** The pairs that attention allows in a layer (by its place), or null where all are. */
  mask(layer: number): Uint8Array | null {
    return this.masks[this.header.allowed[layer]];
  }

  /** One map, [target, source] in row order. It belongs to the item: do not write into it. */
  async map(scope: string, layer: number): Promise<Float32Array> {
    return (await this.decoded(scope, layer)).map;
  }

  /** Codes of the allowed pairs, which are in the order of their values; null where there are none. */
  async codes(scope: string, layer: number): Promise<Uint16Array | null> {
    return (await this.decoded(scope, layer)).codes;
  }

  /** The heads of a layer (by its place), or null where it has no maps of them. */
  heads(scope: string, layer: number): Blob_[] | null {
    return this.header.heads[scope]?.[layer] ?? null;
  }

  /** The map of one head; it is decoded when it is asked for. */
  async head(scope: string, layer: number, head: number): Promise<Float32Array> {
    const blob = this.heads(scope, layer)?.[head];
    if (blob === undefined) throw new Error(`there is no head ${head} of ${scope} in this layer`);
    return (await this.keep(`${scope}/${layer}#${head}`, () => this.read(blob, layer))).map;
  }

  private decoded(scope: string, layer: number): Promise<Decoded> {
    return this.keep(`${scope}/${layer}`, () => this.readMap(scope, layer));
  }

  private keep(key: string, read: () => Promise<Decoded>): Promise<Decoded> {
    let found = this.kept.get(key);
    if (found === undefined) {
      found = read();
      // About 200 MB of maps are kept; the oldest go first.
      const most = Math.max(16, Math.floor(2e8 / (4 * this.height * this.width)));
      if (this.kept.size >= most) this.kept.delete(this.kept.keys().next().value as string);
      this.kept.set(key, found);
    }
    return found;
  }

  /** Mixing ratios [layer, target] of a scope, or null where the maps have none. */
  async mixing(scope: string): Promise<Float32Array | null> {
    const blob = this.header.mixing[scope];
    return blob === undefined ? null : floats(await this.inflated(blob), blob);
  }

  /** The picture whose patches are tokens; null where it is not known. */
  async picture(): Promise<Picture | null> {
    const picture = this.header.grid?.picture ?? null;
    return picture && { ...picture, pixels: await this.inflated(picture.pixels) };
  }

  /** Which experts each token used; null where no layer has experts. */
  async routing(): Promise<Routing | null> {
    const { routing } = this.header;
    if (routing === null) return null;
    const read = async (blob: Blob_) => floats(await this.inflated(blob), blob);
    const [experts, weights] = await Promise.all([routing.experts, routing.weights].map(read));
    return { ...routing, experts, weights, shared: routing.shared && (await read(routing.shared)) };
  }

  private async readMap(scope: string, layer: number): Promise<Decoded> {
    const from = this.header.derived[scope];
    if (from !== undefined) {
      const half = (await this.map(from, layer)).slice();
      for (let k = 0; k < half.length; k++) half[k] = 0.5 * half[k] + 0.5 * this.same[k];
      return { map: half, codes: null };
    }
    return this.read(this.header.maps[scope][layer], layer);
  }

  private async read(blob: Blob_, layer: number): Promise<Decoded> {
    const planes = await this.inflated(blob);
    const values = floats(planes, blob);
    const mask = this.mask(layer);
    const codes = blob.coding === "log16" && !blob.full ? wideCodes(planes) : null;
    if (mask === null || blob.full) return { map: values, codes };
    const map = new Float32Array(this.height * this.width);
    for (let k = 0, at = 0; k < map.length; k++) if (mask[k]) map[k] = values[at++];
    return { map, codes };
  }

  private async readMask(mask: "all" | "lower" | Blob_): Promise<Uint8Array | null> {
    if (mask === "all") return null;
    if (mask !== "lower") return this.readBits(mask);
    const { height, width } = this;
    const allowed = new Uint8Array(height * width);
    for (let i = 0; i < height; i++) allowed.fill(1, i * width, i * width + i + 1);
    return allowed;
  }

  private async readSame(): Promise<Uint8Array<ArrayBuffer>> {
    const { same_token: same, sources } = this.header;
    if (same !== null) return this.readBits(same);
    const none = new Uint8Array(this.height * this.width);
    if (sources === null) for (let i = 0; i < this.height; i++) none[i * this.width + i] = 1;
    return none;
  }

  private async readBits(blob: Blob_): Promise<Uint8Array<ArrayBuffer>> {
    const bits = await this.inflated(blob);
    const flags = new Uint8Array(this.height * this.width);
    for (let k = 0; k < flags.length; k++) flags[k] = (bits[k >> 3] >> (k & 7)) & 1;
    return flags;
  }

  /** A blob's bytes as they lie in the payload. */
  stored(blob: Blob_): Uint8Array {
    return stored(this.source, this.start, blob);
  }

  private inflated(blob: Blob_): Promise<Uint8Array> {
    return inflate(this.stored(blob));
  }
}

export const FORMAT = "normlens-viewer";
export const VERSION = 3;

/** The items of a payload. */
export async function open(source: Source): Promise<Item[]> {
  const found = contents(source);
  expect(found, FORMAT, VERSION);
  const items = found.items as ItemHeader[];
  return Promise.all(items.map((item) => new Item(item, source, found.start).open()));
}

/** Items of several payloads as one. */
export function packed(items: Item[]): Uint8Array {
  const packer = new Packer();
  const moved = (blob: Blob_, item: Item): Blob_ => packer.add(blob, item.stored(blob));
  const entries = <T, U>(of: Record<string, T>, change: (value: T) => U): Record<string, U> =>
    Object.fromEntries(Object.entries(of).map(([name, value]) => [name, change(value)]));
  const movedGrid = (item: Item): Grid | null => {
    const { grid } = item.header;
    if (grid === null || grid.picture === null) return grid;
    return { ...grid, picture: { ...grid.picture, pixels: moved(grid.picture.pixels, item) } };
  };
  const movedRouting = (item: Item): ItemHeader["routing"] => {
    const { routing } = item.header;
    if (routing === null) return null;
    const { experts, weights, shared } = routing;
    return {
      ...routing,
      experts: moved(experts, item),
      weights: moved(weights, item),
      shared: shared && moved(shared, item),
    };
  };
  const header = (item: Item): ItemHeader => ({
    ...item.header,
    same_token: item.header.same_token && moved(item.header.same_token, item),
    masks: item.header.masks.map((mask) => (typeof mask === "string" ? mask : moved(mask, item))),
    maps: entries(item.header.maps, (blobs) => blobs.map((blob) => moved(blob, item))),
    heads: entries(item.header.heads, (layers) => layers.map((blobs) => blobs && blobs.map((blob) => moved(blob, item)))),
    mixing: entries(item.header.mixing, (blob) => moved(blob, item)),
    grid: movedGrid(item),
    routing: movedRouting(item),
    encoder: item.encoder && header(item.encoder),
  });
  return packer.payload(FORMAT, VERSION, items.map(header));
}
