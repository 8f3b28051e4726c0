// Tokens that are patches of a picture: where they lie, and a row or a column of a map at them.

import type { Pin } from "./heatframe";
import type { Mask } from "./measures";
import type { Picture } from "./payload";
import type { Shown } from "./shown";

/** Places among the tokens that are shown. */
export interface Patches {
  rows: number;
  columns: number;
  tokens: number[]; // of the patches, row by row
  others: number[]; // [CLS], registers and the like
}

/** The patches among the tokens that are shown; null where they are not all there. */
export function patchesOf({ item, rows: axis }: Shown): Patches | null {
  const { grid } = item.header;
  if (grid === null || axis.groups !== null) return null;
  const { rows, columns, first } = grid;
  const start = axis.positions.indexOf(first);
  const tokens = Array.from({ length: rows * columns }, (_, k) => start + k);
  if (tokens.some((token, k) => axis.positions[token] !== first + k)) return null;
  const others = axis.positions.map((_, k) => k).filter((k) => k < start || k >= start + tokens.length);
  return { rows, columns, tokens, others };
}

/** Where in a map [target, source] of some width a token meets another one. */
export function meeting(width: number, token: number, direction: Pin["axis"], other: number): number {
  return direction === "row" ? token * width + other : other * width + token;
}

/** The values of the patches in a token's row or column, and which of them count. */
export function lineOf(
  { map, mask, width }: { map: Float32Array; mask: Mask; width: number },
  { tokens }: Patches,
  token: number,
  direction: Pin["axis"],
): { values: Float32Array; mask: Mask } {
  const places = tokens.map((other) => meeting(width, token, direction, other));
  return {
    values: Float32Array.from(places, (k) => map[k]),
    mask: mask && Uint8Array.from(places, (k) => mask[k]),
  };
}

/** The patch beside a token, or the same at the edge; from a token that is no patch, the first one. */
export function beside({ rows, columns, tokens }: Patches, token: number, [down, right]: [number, number]): number {
  const place = tokens.indexOf(token);
  if (place < 0) return tokens[0];
  const within = (value: number, size: number) => Math.max(0, Math.min(size - 1, value));
  const row = within(Math.floor(place / columns) + down, rows);
  return tokens[row * columns + within((place % columns) + right, columns)];
}

/** A token in words: “patch 3,5”, or its name. */
export function patchName({ tokens }: Patches, labels: string[], token: number): string {
  return tokens.includes(token) ? `patch ${labels[token]}` : labels[token];
}

const DARKEST = 0.35; // so that colours stay what they are on dark patches, too
export const MIDDLE = (255 * (1 + DARKEST)) / 2; // a middling grey of such a picture

export interface Drawn {
  width: number;
  height: number;
  plain: string; // addresses of images
  grey: string;
}

/** What has a picture: an item of maps or an explanation. */
interface Pictured {
  picture(): Promise<Picture | null>;
}

const kept = new WeakMap<Pictured, Promise<Drawn | null>>();

/** An item's picture as images, in its colours and in bright greys. */
export function drawnPicture(item: Pictured): Promise<Drawn | null> {
  let drawn = kept.get(item);
  if (drawn === undefined) {
    drawn = item.picture().then((picture) => picture && draw(picture));
    kept.set(item, drawn);
  }
  return drawn;
}

function draw(picture: Picture): Drawn {
  const { width, height } = picture;
  return { width, height, plain: address(picture, false), grey: address(picture, true) };
}

function address({ width, height, pixels }: Picture, grey: boolean): string {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  const image = context.createImageData(width, height);
  for (let k = 0; k < width * height; k++) {
    const [r, g, b] = pixels.subarray(3 * k, 3 * k + 3);
    const brightness = 255 * DARKEST + (1 - DARKEST) * (0.299 * r + 0.587 * g + 0.114 * b);
    image.data.set(grey ? [brightness, brightness, brightness, 255] : [r, g, b, 255], 4 * k);
  }
  context.putImageData(image, 0, 0);
  return canvas.toDataURL("image/png");
}
