// The container of every payload: a JSON header, then compressed arrays; see CONTRACT.md.

export interface Blob_ {
  at: number;
  length: number;
  coding: "f32" | "log16" | "log8" | "signed16" | "bits" | "bytes";
  low?: number;
  step?: number;
  full?: boolean;
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

/** A payload's header, and where its arrays begin. */
export interface Contents {
  format: string;
  version: number;
  items: unknown[];
  start: number;
}

export function contents(source: Source): Contents {
  const first = source.bytes(0, 12);
  if (String.fromCharCode(...first.subarray(0, 8)) !== MAGIC) {
    throw new Error("this is not a payload of the NormLens viewer");
  }
  const length = new DataView(first.buffer, first.byteOffset).getUint32(8, true);
  const header = JSON.parse(new TextDecoder().decode(source.bytes(12, 12 + length)));
  return { ...header, start: 12 + length };
}

/** Raises unless a payload has the format and version that a reader knows. */
export function expect(found: Contents, format: string, version: number): void {
  if (found.format !== format) throw new Error(`the payload is ${found.format}, not ${format}`);
  if (found.version !== version) {
    throw new Error(`the payload has version ${found.version}, this viewer reads version ${version}`);
  }
}

/** A blob's bytes as they lie in a payload whose arrays begin at `start`. */
export function stored(source: Source, start: number, blob: Blob_): Uint8Array {
  const at = start + blob.at;
  return source.bytes(at, at + blob.length);
}

/** The numbers of a blob. */
export async function decoded(source: Source, start: number, blob: Blob_): Promise<Float32Array> {
  return floats(await inflate(stored(source, start, blob)), blob);
}

/** Collects the arrays of a new payload. */
export class Packer {
  private readonly parts: Uint8Array[] = [];
  private size = 0;

  /** Takes over a blob's bytes; returns where they lie now. */
  add(blob: Blob_, bytes: Uint8Array): Blob_ {
    const padded = new Uint8Array(Math.ceil(bytes.length / 3) * 3);
    padded.set(bytes);
    this.parts.push(padded);
    const at = this.size;
    this.size += padded.length;
    return { ...blob, at };
  }

  payload(format: string, version: number, items: unknown[]): Uint8Array {
    let json = JSON.stringify({ format, version, items });
    // ASCII only, as Python writes it, so that lengths in characters and bytes agree.
    json = json.replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
    json += " ".repeat((3 - (json.length % 3)) % 3);
    const whole = new Uint8Array(12 + json.length + this.size);
    whole.set(new TextEncoder().encode(MAGIC));
    new DataView(whole.buffer).setUint32(8, json.length, true);
    whole.set(new TextEncoder().encode(json), 12);
    let at = 12 + json.length;
    for (const part of this.parts) {
      whole.set(part, at);
      at += part.length;
    }
    return whole;
  }
}

export async function inflate(bytes: Uint8Array): Promise<Uint8Array> {
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
  if (blob.coding === "signed16") return signedFloats(wideCodes(planes), blob);
  const wide = blob.coding === "log16";
  const size = wide ? planes.length / 2 : planes.length;
  const table = decodingTable(wide ? 65536 : 256, blob.low ?? 0, blob.step ?? 0);
  const values = new Float32Array(size);
  for (let k = 0; k < size; k++) {
    values[k] = table[wide ? planes[k] | (planes[size + k] << 8) : planes[k]];
  }
  return values;
}

/** A sign and a logarithm; the sign alone is NaN. */
function signedFloats(codes: Uint16Array, blob: Blob_): Float32Array {
  const sizes = decodingTable(32769, blob.low ?? 0, blob.step ?? 0);
  const values = new Float32Array(codes.length);
  for (let k = 0; k < codes.length; k++) {
    const size = sizes[codes[k] & 32767];
    values[k] = codes[k] === 32768 ? NaN : codes[k] & 32768 ? -size : size;
  }
  return values;
}

export function wideCodes(planes: Uint8Array): Uint16Array {
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
