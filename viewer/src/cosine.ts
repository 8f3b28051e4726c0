// Reads what normlens.viewer.cosine_payload writes, by tokens or by words; see CONTRACT.md.

import { contents, decoded, expect, Packer, stored, type Blob_, type Source } from "./container";
import { summedBoth, summedRows, wordLabels, type TokenFields } from "./explanation";
import { wordGroups } from "./axes";

export const FORMAT = "normlens-viewer-cosines";
export const VERSION = 1;

export interface TextFields extends TokenFields {
  text: string | null;
}

export interface CosineHeader {
  model: string;
  value: number;
  completeness: number | null;
  remainder: Record<string, number>;
  provenance: Record<string, unknown>;
  a: TextFields;
  b: TextFields;
  matrix: Blob_;
  a_with_bias: Blob_;
  b_with_bias: Blob_;
  bias: number;
  left_out: string[];
}

export interface Side {
  labels: string[];
  special: boolean[];
  withBias: Float32Array; // each token with the other text's biases
  margin: Float32Array; // each token with all of the other text
}

/** The parts of a cosine, by tokens or by words. */
export interface Compared {
  a: Side;
  b: Side;
  matrix: Float32Array; // [token of A, token of B]
}

export class CosineItem {
  constructor(
    readonly header: CosineHeader,
    readonly source: Source,
    private readonly start: number,
  ) {}

  async at(level: "subwords" | "words"): Promise<Compared> {
    const { a, b } = this.header;
    const get = (blob: Blob_) => decoded(this.source, this.start, blob);
    let [matrix, withA, withB] = await Promise.all([get(this.header.matrix), get(this.header.a_with_bias), get(this.header.b_with_bias)]);
    let labels = [a.labels, b.labels];
    let special = [a.special, b.special];
    if (level === "words" && a.words !== null && b.words !== null) {
      const groups = [wordGroups(a.words), wordGroups(b.words)];
      matrix = summedBoth(matrix, b.labels.length, groups[0], groups[1]);
      withA = summedRows(withA, withA.length, groups[0]);
      withB = summedRows(withB, withB.length, groups[1]);
      labels = [wordLabels(a, groups[0]), wordLabels(b, groups[1])];
      special = special.map((flags, k) => groups[k].map(([first]) => flags[first]));
    }
    const [marginA, marginB] = margins(matrix, withA, withB);
    return {
      matrix,
      a: { labels: labels[0], special: special[0], withBias: withA, margin: marginA },
      b: { labels: labels[1], special: special[1], withBias: withB, margin: marginB },
    };
  }

  get hasWords(): boolean {
    return this.header.a.words !== null && this.header.b.words !== null;
  }

  moved(packer: Packer): CosineHeader {
    const move = (blob: Blob_) => packer.add(blob, stored(this.source, this.start, blob));
    const { matrix, a_with_bias, b_with_bias } = this.header;
    return { ...this.header, matrix: move(matrix), a_with_bias: move(a_with_bias), b_with_bias: move(b_with_bias) };
  }
}

/** What each token has of the cosine with all of the other text, its biases included. */
export function margins(matrix: Float32Array, withA: Float32Array, withB: Float32Array): [Float32Array, Float32Array] {
  const [rows, columns] = [withA.length, withB.length];
  const [a, b] = [Float64Array.from(withA), Float64Array.from(withB)];
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) {
      a[i] += matrix[i * columns + j];
      b[j] += matrix[i * columns + j];
    }
  }
  return [Float32Array.from(a), Float32Array.from(b)];
}

export function openCosines(source: Source): CosineItem[] {
  const found = contents(source);
  expect(found, FORMAT, VERSION);
  return found.items.map((item) => new CosineItem(item as CosineHeader, source, found.start));
}

export function packedCosines(items: CosineItem[]): Uint8Array {
  const packer = new Packer();
  return packer.payload(FORMAT, VERSION, items.map((item) => item.moved(packer)));
}
