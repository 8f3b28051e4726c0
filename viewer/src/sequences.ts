// The two sequences of an encoder–decoder's explanation: which tokens and layers are whose, and what each supplies.

import { number, signed, type Ink } from "./colours";
import { svg } from "./dom";
import type { Explained, ExplanationHeader } from "./explanation";
import { cut, textWidth } from "./figure";

export interface Sequences {
  source_tokens: number; // the first tokens are so many of the source, the others of the target
  encoder_layers: number; // the first layers are so many of the encoder
  shares: {
    source: number;
    prefix: number;
    bias: number;
    source_share: number | null; // null where neither gives anything
    source_share_absolute: number | null;
  };
}

/** What people call a layer: its number, behind its stack where there are two. */
export function layerName({ sequences }: Pick<Explained, "sequences">, layer: number): string {
  if (sequences === null) return String(layer);
  const { encoder_layers: first } = sequences;
  return layer < first ? `enc. ${layer}` : `dec. ${layer - first}`;
}

/** Where each sequence begins among the tokens, with its name; one has none. */
export function beginnings({ sequences }: Pick<Explained, "sequences">): Map<number, string> {
  if (sequences === null) return new Map();
  return new Map([
    [0, "source"],
    [sequences.source_tokens, "prefix"],
  ]);
}

export function percent(share: number | null): string {
  return share === null ? "–" : `${(100 * share).toFixed(0)} %`;
}

export const OF_SOURCE = "#0072B2";
export const OF_PREFIX = "#E69F00";
const ROW = 24;
const TOP = 24;
const LONGEST = 18;

/** For each explanation a bar, divided as source and prefix supply its score; returns the size. */
export function drawShares(
  into: SVGElement,
  headers: ExplanationHeader[],
  chosen: number,
  room: number,
  ink: Ink,
): { width: number; height: number } {
  const names = headers.map(({ target }) => cut(target ?? "score", LONGEST));
  const left = Math.ceil(Math.max(...names.map((name) => textWidth(name, 13)), 40)) + 16;
  const right = 190;
  const long = Math.max(160, Math.min(620, room - left - right));
  const heads = svg("g", { "font-size": 11, fill: ink.muted });
  const key = (x: number, colour: string, name: string) =>
    heads.append(svg("rect", { x, y: 4, width: 10, height: 10, fill: colour }), svg("text", { x: x + 14, y: 13 }, name));
  key(left, OF_SOURCE, "source");
  key(left + 70, OF_PREFIX, "prefix");
  heads.append(svg("text", { x: left + long + 12, y: 13 }, "source · prefix · no token"));
  into.append(heads);
  headers.forEach(({ sequences }, k) => {
    if (sequences === null) return;
    const { source, prefix, bias, source_share: share, source_share_absolute: absolute } = sequences.shares;
    const y = TOP + k * ROW;
    const row = svg("g", { class: "pick", "data-item": k, "data-source-share": share ?? "" });
    row.append(
      svg("rect", { x: 0, y, width: left + long + right, height: ROW, fill: k === chosen ? ink.line : "transparent", "data-item": k }),
      svg("text", { x: left - 8, y: y + 16, "text-anchor": "end", "font-size": 13, "font-weight": k === chosen ? 700 : 400, fill: ink.text, "data-item": k }, names[k]),
      svg("rect", { x: left, y: y + 3, width: long, height: ROW - 6, fill: share === null ? "none" : OF_PREFIX, "data-item": k }),
      svg("rect", { x: left, y: y + 3, width: long * (share ?? 0), height: ROW - 6, fill: OF_SOURCE, "data-item": k }),
      svg("text", { x: left + long + 12, y: y + 16, "font-size": 11, fill: ink.muted, "data-item": k }, [source, prefix, bias].map(signed).join("  ")),
    );
    if (absolute !== null) {
      const x = left + long * absolute;
      row.append(svg("line", { x1: x, x2: x, y1: y + 1, y2: y + ROW - 1, stroke: ink.text, "stroke-width": 2, "data-item": k }));
    }
    into.append(row);
  });
  return { width: left + long + right, height: TOP + headers.length * ROW + 6 };
}

/** What a row of the picture says when it is pointed at. */
export function shareLines({ target, value, sequences }: ExplanationHeader): string[] {
  if (sequences === null) return [];
  const { source, prefix, bias, source_share, source_share_absolute } = sequences.shares;
  return [
    `${target ?? "score"}: ${number(value)}`,
    `source ${signed(source)}, prefix ${signed(prefix)}, no token ${signed(bias)}`,
    `source’s share ${percent(source_share)}; of absolute contributions ${percent(source_share_absolute)}`,
  ];
}
