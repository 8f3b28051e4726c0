// Reads what normlens.viewer.payload writes; see CONTRACT.md.

export interface Blob_ {
  at: number;
  length: number;
  coding: "f32" | "log16" | "log8" | "bits";
  low?: number;
  step?: number;
  full?: boolean;
}

export interface ItemHeader {
  model: string;
  text: string[] | null;
  tokens: string[];
  labels: string[];
  special: boolean[];
  words: (number | null)[] | null;
  word_labels: string[];
  layers: number[];
  scopes: string[];
  completeness: number | null;
  provenance: Record<string, unknown>;
  masks: ("all" | "lower" | Blob_)[];
  allowed: number[];
  maps: Record<string, Blob_[]>;
  derived: Record<string, string>;
  mixing: Record<string, Blob_>;
  precision: { bits: number; relative_error: number };
  left_out: string[];
}

/** Where the payload's bytes lie; a page keeps them as base64 and decodes only what is looked at. */
export interface Source {
  bytes(start: number, end: number): Uint8Array;
  base64(): string;
}

const MAGIC = "NLVIEW01";

export class BytesSource implements Source {
  constructor(private readonly data: Uint8Array) {}

  bytes(start: number, end: number): Uint8Array {
    return this.data.subarray(start, end);
  }

  base64(): string {
    const pieces: string[] = [];
    const size = 3 * 8192;
    for (let at = 0; at < this.data.length; at += size) {
      pieces.push(btoa(String.fromCharCode(...this.data.subarray(at, at + size))));
    }
    return pieces.join("");
  }
}

export class Base64Source implements Source {
  constructor(private readonly text: string) {}

  /** `start` is a multiple of 3, so that it begins a group of four characters. */
  bytes(start: number, end: number): Uint8Array {
    const piece = atob(this.text.slice((start / 3) * 4, Math.ceil(end / 3) * 4));
    const bytes = new Uint8Array(end - start);
    for (let k = 0; k < bytes.length; k++) bytes[k] = piece.charCodeAt(k);
    return bytes;
  }

  base64(): string {
    return this.text;
  }
}

interface Decoded {
  map: Float32Array;
  codes: Uint16Array | null;
}

/** One analysed text: its header, and its maps as they are asked for. */
export class Item {
  readonly n: number;
  private readonly kept = new Map<string, Promise<Decoded>>();
  private masks: (Uint8Array | null)[] = [];

  constructor(
    readonly header: ItemHeader,
    readonly source: Source,
    private readonly start: number,
  ) {
    this.n = header.tokens.length;
  }

  async open(): Promise<Item> {
    this.masks = await Promise.all(this.header.masks.map((mask) => this.readMask(mask)));
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

  private decoded(scope: string, layer: number): Promise<Decoded> {
    const key = `${scope}/${layer}`;
    let found = this.kept.get(key);
    if (found === undefined) {
      found = this.readMap(scope, layer);
      // About 200 MB of maps are kept; the oldest go first.
      const most = Math.max(16, Math.floor(2e8 / (4 * this.n * this.n)));
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

  private async readMap(scope: string, layer: number): Promise<Decoded> {
    const n = this.n;
    const from = this.header.derived[scope];
    if (from !== undefined) {
      const half = (await this.map(from, layer)).slice();
      for (let k = 0; k < half.length; k++) half[k] *= 0.5;
      for (let i = 0; i < n; i++) half[i * n + i] += 0.5;
      return { map: half, codes: null };
    }
    const blob = this.header.maps[scope][layer];
    const planes = await this.inflated(blob);
    const values = floats(planes, blob);
    const mask = this.mask(layer);
    const codes = blob.coding === "log16" && !blob.full ? wideCodes(planes) : null;
    if (mask === null || blob.full) return { map: values, codes };
    const map = new Float32Array(n * n);
    for (let k = 0, at = 0; k < map.length; k++) if (mask[k]) map[k] = values[at++];
    return { map, codes };
  }

  private async readMask(mask: "all" | "lower" | Blob_): Promise<Uint8Array | null> {
    const n = this.n;
    if (mask === "all") return null;
    const allowed = new Uint8Array(n * n);
    if (mask === "lower") {
      for (let i = 0; i < n; i++) allowed.fill(1, i * n, i * n + i + 1);
    } else {
      const bits = await this.inflated(mask);
      for (let k = 0; k < allowed.length; k++) allowed[k] = (bits[k >> 3] >> (k & 7)) & 1;
    }
    return allowed;
  }

  /** A blob's bytes as they lie in the payload. */
  stored(blob: Blob_): Uint8Array {
    const at = this.start + blob.at;
    return this.source.bytes(at, at + blob.length);
  }

  private inflated(blob: Blob_): Promise<Uint8Array> {
    return inflate(this.stored(blob));
  }
}

/** The items of a payload. */
export async function open(source: Source): Promise<Item[]> {
  const first = source.bytes(0, 12);
  if (String.fromCharCode(...first.subarray(0, 8)) !== MAGIC) {
    throw new Error("this is not a payload of the NormLens viewer");
  }
  const length = new DataView(first.buffer, first.byteOffset).getUint32(8, true);
  const header = JSON.parse(new TextDecoder().decode(source.bytes(12, 12 + length)));
  if (header.version !== 1) {
    throw new Error(`the payload has version ${header.version}, this viewer reads version 1`);
  }
  const items: ItemHeader[] = header.items;
  return Promise.all(items.map((item) => new Item(item, source, 12 + length).open()));
}

/** Items of several payloads as one. */
export function packed(items: Item[]): Uint8Array {
  const parts: Uint8Array[] = [];
  let size = 0;
  const moved = (blob: Blob_, item: Item): Blob_ => {
    const bytes = item.stored(blob);
    const padded = new Uint8Array(Math.ceil(bytes.length / 3) * 3);
    padded.set(bytes);
    parts.push(padded);
    const at = size;
    size += padded.length;
    return { ...blob, at };
  };
  const entries = <T, U>(of: Record<string, T>, change: (value: T) => U): Record<string, U> =>
    Object.fromEntries(Object.entries(of).map(([name, value]) => [name, change(value)]));
  const headers = items.map((item) => ({
    ...item.header,
    masks: item.header.masks.map((mask) => (typeof mask === "string" ? mask : moved(mask, item))),
    maps: entries(item.header.maps, (blobs) => blobs.map((blob) => moved(blob, item))),
    mixing: entries(item.header.mixing, (blob) => moved(blob, item)),
  }));
  let json = JSON.stringify({ format: "normlens-viewer", version: 1, items: headers });
  // ASCII only, as Python writes it, so that lengths in characters and bytes agree.
  json = json.replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
  json += " ".repeat((3 - (json.length % 3)) % 3);
  const whole = new Uint8Array(12 + json.length + size);
  whole.set(new TextEncoder().encode(MAGIC));
  new DataView(whole.buffer).setUint32(8, json.length, true);
  whole.set(new TextEncoder().encode(json), 12);
  let at = 12 + json.length;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

async function inflate(bytes: Uint8Array): Promise<Uint8Array> {
  const stream = new Blob([bytes as BlobPart])
    .stream()
    .pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Numbers from byte planes. */
export function floats(planes: Uint8Array, blob: Blob_): Float32Array {
  if (blob.coding === "f32") {
    const size = planes.length / 4;
    const values = new Float32Array(size);
    const bytes = new Uint8Array(values.buffer);
    for (let plane = 0; plane < 4; plane++) {
      for (let k = 0, from = plane * size; k < size; k++) bytes[4 * k + plane] = planes[from + k];
    }
    return values;
  }
  const wide = blob.coding === "log16";
  const size = wide ? planes.length / 2 : planes.length;
  const table = decodingTable(wide ? 65536 : 256, blob.low ?? 0, blob.step ?? 0);
  const values = new Float32Array(size);
  for (let k = 0; k < size; k++) {
    values[k] = table[wide ? planes[k] | (planes[size + k] << 8) : planes[k]];
  }
  return values;
}

function wideCodes(planes: Uint8Array): Uint16Array {
  const size = planes.length / 2;
  const codes = new Uint16Array(size);
  for (let k = 0; k < size; k++) codes[k] = planes[k] | (planes[size + k] << 8);
  return codes;
}

function decodingTable(size: number, low: number, step: number): Float32Array {
  const table = new Float32Array(size);
  for (let code = 1; code < size - 1; code++) table[code] = Math.exp(low + (code - 1) * step);
  table[size - 1] = NaN;
  return table;
}
