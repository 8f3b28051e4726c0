// Columns of two sequences: which column is whose, and which of them a scope has parts of.

import type { Mask } from "./measures";

export const OWN = "decoder"; // the targets' own sequence; any other name is another one's
export type Sources = "both" | "encoder" | "decoder";

/** Columns that are other tokens than the rows: whose they are, and whose each scope has parts of. */
export interface Sequences {
  sequences: string[]; // of each token
  held: Record<string, string[]>; // by scope
}

/** Neighbouring columns of one sequence. */
export interface Group {
  name: string;
  from: number;
  to: number; // not included
}

/** The groups of columns whose sequences are given; none where all are the targets' tokens. */
export function groupsOf(sequences: string[]): Group[] {
  const groups: Group[] = [];
  sequences.forEach((name, k) => {
    const last = groups.at(-1);
    if (last?.name === name) last.to = k + 1;
    else groups.push({ name, from: k, to: k + 1 });
  });
  return groups;
}

/** The group that a column is in. */
export function groupAt(groups: Group[], column: number): Group | undefined {
  return groups.find(({ from, to }) => from <= column && column < to);
}

/** Whether columns are of two sequences, so that either can be hidden. */
export function areTwo(sequences: string[]): boolean {
  return new Set(sequences).size > 1;
}

/** A token with its sequence, where it has to be told: “encoder: Haus”. */
export function named(label: string, sequence: string | undefined): string {
  return sequence === undefined ? label : `${sequence}: ${label}`;
}

/** The allowed pairs whose columns are of some sequences; the others are in no map of the scope. */
export function ofSequences(mask: Mask, rows: number, sequences: string[], held: (name: string) => boolean): Mask {
  const kept = sequences.map(held);
  if (kept.every(Boolean)) return mask;
  const width = kept.length;
  const pairs = new Uint8Array(rows * width);
  for (let i = 0, k = 0; i < rows; i++) {
    for (let j = 0; j < width; j++, k++) pairs[k] = kept[j] && (mask === null || mask[k]) ? 1 : 0;
  }
  return pairs;
}
