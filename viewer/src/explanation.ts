// Reads what normlens.viewer.explanation_payload writes, by tokens or by words; see CONTRACT.md.

import { contents, decoded, expect, inflate, Packer, stored, type Blob_, type Source } from "./container";
import type { Grid, Picture } from "./payload";
import type { Sequences } from "./sequences";
import { wordGroups } from "./axes";

export const FORMAT = "normlens-viewer-explanations";
export const VERSION = 1;

export type Bias = [layer: number | "head", component: string, value: number];

/** The tokens along an axis. */
export interface TokenFields {
  tokens: string[];
  labels: string[];
  special: boolean[];
  words: (number | null)[] | null;
  word_labels: string[];
}

export interface ExplanationHeader extends TokenFields {
  model: string;
  text: string[] | null;
  task: string;
  question: string;
  value: number;
  remainder: number;
  target: string | null;
  target_value: number | null;
  probability: number | null;
  contrast: string | null;
  contrast_value: number | null;
  contrast_probability: number | null;
  position: number | null;
  layer: number | null;
  completeness: number | null;
  component_names: string[];
  biases: Bias[];
  layers: number;
  heads_per_layer: number;
  sequences: Sequences | null; // an encoder–decoder's two
  provenance: Record<string, unknown>;
  nodes: Blob_;
  components: Blob_;
  heads: Blob_;
  cross_heads: Blob_ | null;
  flow: Blob_[] | null;
  grid?: Grid | null; // where tokens are patches of a picture
  precision: { bits: number };
  left_out: string[];
}

/** The numbers of an explanation, by tokens or by words. */
export interface Explained {
  labels: string[];
  special: boolean[];
  position: number | null; // where the score is read
  layers: number;
  nodes: Float32Array; // [layer, source]
  components: Float32Array; // [layer, component, target]
  heads: Float32Array; // [layer, head, target]
  cross: Float32Array | null; // [layer, head, target], of CROSS
  sequences: Sequences | null;
  flow: Float32Array[] | null; // layer → [target, source]
}

export class ExplanationItem {
  private kept: Promise<Explained> | null = null;

  constructor(
    readonly header: ExplanationHeader,
    readonly source: Source,
    private readonly start: number,
  ) {}

  tokens(): Promise<Explained> {
    this.kept ??= this.read();
    return this.kept;
  }

  async at(level: "subwords" | "words"): Promise<Explained> {
    const tokens = await this.tokens();
    const { words } = this.header;
    return level === "words" && words !== null ? byWords(tokens, this.header, wordGroups(words)) : tokens;
  }

  /** The header for another payload, with this item's arrays moved there. */
  moved(packer: Packer): ExplanationHeader {
    const move = (blob: Blob_) => packer.add(blob, stored(this.source, this.start, blob));
    const { nodes, components, heads, cross_heads, flow, grid } = this.header;
    const picture = grid?.picture && { ...grid.picture, pixels: move(grid.picture.pixels) };
    return {
      ...this.header,
      nodes: move(nodes),
      components: move(components),
      heads: move(heads),
      cross_heads: cross_heads === null ? null : move(cross_heads),
      flow: flow === null ? null : flow.map(move),
      grid: grid && { ...grid, picture: picture ?? null },
    };
  }

  /** The picture whose patches are tokens; null where it is not known. */
  async picture(): Promise<Picture | null> {
    const picture = this.header.grid?.picture ?? null;
    return picture && { ...picture, pixels: await inflate(stored(this.source, this.start, picture.pixels)) };
  }

  private async read(): Promise<Explained> {
    const { header, source, start } = this;
    const get = (blob: Blob_) => decoded(source, start, blob);
    const [nodes, components, heads] = await Promise.all([header.nodes, header.components, header.heads].map(get));
    const cross = header.cross_heads === null ? null : await get(header.cross_heads);
    const flow = header.flow === null ? null : await Promise.all(header.flow.map(get));
    const { labels, special, position, layers, sequences } = header;
    return { labels, special, position, layers, nodes, components, heads, cross, sequences, flow };
  }
}

export function openExplanations(source: Source): ExplanationItem[] {
  const found = contents(source);
  expect(found, FORMAT, VERSION);
  return found.items.map((item) => new ExplanationItem(item as ExplanationHeader, source, found.start));
}

export function packedExplanations(items: ExplanationItem[]): Uint8Array {
  const packer = new Packer();
  return packer.payload(FORMAT, VERSION, items.map((item) => item.moved(packer)));
}

/** Labels of words; a token without a word keeps its own. */
export function wordLabels(fields: TokenFields, groups: number[][]): string[] {
  return groups.map(([first]) => {
    const word = fields.words?.[first] ?? null;
    return word === null ? fields.labels[first] : fields.word_labels[word];
  });
}

/** Sums rows of n numbers over groups. */
export function summedRows(array: Float32Array, n: number, groups: number[][]): Float32Array {
  const rows = array.length / n;
  const sums = new Float32Array(rows * groups.length);
  for (let row = 0; row < rows; row++) {
    groups.forEach((group, g) => {
      let sum = 0;
      for (const k of group) sum += array[row * n + k];
      sums[row * groups.length + g] = sum;
    });
  }
  return sums;
}

/** The transpose of an array of `rows` rows. */
export function transposed(array: Float32Array, rows: number): Float32Array {
  const columns = array.length / rows;
  const turned = new Float32Array(array.length);
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) turned[j * rows + i] = array[i * columns + j];
  return turned;
}

/** Sums a matrix over groups of its rows and of its columns. */
export function summedBoth(matrix: Float32Array, columns: number, ofRows: number[][], ofColumns: number[][]): Float32Array {
  const narrow = summedRows(matrix, columns, ofColumns);
  const rows = matrix.length / columns;
  return transposed(summedRows(transposed(narrow, rows), rows, ofRows), ofColumns.length);
}

/** As Explanation.words(): what a word's tokens contribute and pass on is summed. */
export function byWords(tokens: Explained, fields: TokenFields, groups: number[][]): Explained {
  const n = tokens.labels.length;
  const { position, sequences } = tokens;
  const first = sequences?.source_tokens ?? 0;
  return {
    labels: wordLabels(fields, groups),
    special: groups.map(([first]) => tokens.special[first]),
    position: position === null ? null : groups.findIndex((group) => group.includes(position)),
    layers: tokens.layers,
    nodes: summedRows(tokens.nodes, n, groups),
    components: summedRows(tokens.components, n, groups),
    heads: summedRows(tokens.heads, n, groups),
    cross: tokens.cross === null ? null : summedRows(tokens.cross, n, groups),
    sequences: sequences === null ? null : { ...sequences, source_tokens: groups.filter(([k]) => k < first).length },
    flow: tokens.flow?.map((map) => summedBoth(map, n, groups, groups)) ?? null,
  };
}
