// From values to colours. Every map of colours here can be told apart with common colour blindness.

import { format } from "d3-format";
import { interpolateRgbBasis } from "d3-interpolate";
import { scaleLinear, scalePow } from "d3-scale";
import {
  interpolateCividis,
  interpolateGreys,
  interpolateMagma,
  interpolateRdBu,
  interpolateViridis,
} from "d3-scale-chromatic";

import { Mask, allowedValues, centredRanks } from "./measures";
import { beyond, beyondWord, clippedEnd, isShown, SCALE_WORDS, type Pairs, type Scale } from "./scale";

export type Palette = "viridis" | "cividis" | "magma" | "greys";

/** Colours of text and lines; figures that are saved use the light ones. */
export interface Ink {
  dark: boolean;
  paper: string;
  text: string;
  muted: string;
  line: string;
  absent: string;
  accent: string;
  plus: string; // what raises a score
  minus: string; // what lowers it
}

export const LIGHT: Ink = {
  dark: false,
  paper: "#ffffff",
  text: "#1c1f27",
  muted: "#5b6170",
  line: "#c9ccd6",
  absent: "#eff0f3",
  accent: "#c2410c",
  plus: "#b8482a",
  minus: "#2f6fb0",
};

export const DARK: Ink = {
  dark: true,
  paper: "#14161c",
  text: "#eceef4",
  muted: "#a3a9b8",
  line: "#3a3f4d",
  absent: "#1d2029",
  accent: "#ffb86b",
  plus: "#f08a5a",
  minus: "#5aa9f0",
};

const SEQUENTIAL: Record<Palette, (t: number) => string> = {
  viridis: interpolateViridis,
  cividis: interpolateCividis,
  magma: interpolateMagma,
  greys: interpolateGreys,
};

const darkDiverging = interpolateRgbBasis([
  "#b5dcff", "#5aa9f0", "#2a5f9e", "#1c2a3d", "#16181e", "#3b2119", "#a3482a", "#f08a5a", "#ffd2b5",
]);

export interface Colouring {
  /** The place of a value on the scale by its place in the map: 0 to 1; above 1 what is beyond it, below 0 what is left out. */
  at(place: number): number;
  colour(t: number): string;
  ticks: { t: number; label: string }[];
  what: string;
  scale?: string; // in words
  top?: number; // where the scale ends
  beyond?: boolean; // whether anything is beyond the scale
  packed: Uint32Array; // 256 colours for image data
}

// A colour that no palette has, also for the colour-blind; as in normlens.figures.colour_scales.
const BEYOND: Record<Palette, string> = { viridis: "#c2410c", cividis: "#c2410c", magma: "#00c8ff", greys: "#c2410c" };

/** What the values of a map are of: of a token with itself, and of others. */
interface Nouns {
  same: string;
  one: string;
  several: string;
}

const PAIRS: Nouns = { same: "i = j", one: "pair", several: "pairs" };
export const PATCHES: Nouns = { same: "the outlined patch itself", one: "patch", several: "patches" };

export function sequential(
  map: Float32Array,
  pairs: Pairs,
  options: { scale: Scale; palette: Palette; top: number; what: string; dark: boolean; reach?: string; nouns?: Nouns },
): Colouring {
  const { scale, palette, top, what, dark, reach = "", nouns = PAIRS } = options;
  const interpolate = SEQUENTIAL[palette];
  const colour = (t: number) => {
    if (t < 0) return dark ? DARK.line : LIGHT.line;
    if (t > 1) return BEYOND[palette];
    // On a dark page grey begins dark too, so that large values stand out.
    return interpolate(palette === "greys" && dark ? 1 - t : t);
  };
  const packed = pack(colour);
  const left = (k: number) => !pairs.diagonal && pairs.same[k] > 0;
  if (scale === "rank") {
    const mask = pairs.diagonal ? pairs.mask : Uint8Array.from(map, (_, k) => Number(isShown(pairs, k)));
    const place = rankPlaces(map, mask);
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((t) => ({ t, label: `${100 * t} %` }));
    const at = (k: number) => (left(k) ? -1 : place[k]);
    return { at, colour, ticks, what: `rank of the ${what}`, scale: `rank among the ${nouns.several} shown`, packed };
  }
  const root = scale !== "linear";
  const at = (k: number) => {
    if (left(k)) return -1;
    if (map[k] > top) return 2;
    const share = Math.min(1, map[k] / top);
    return root ? Math.sqrt(share) : share;
  };
  const over = beyond(map, pairs, top);
  return {
    at,
    colour,
    ticks: ticksOf(scaleFor(scale, top), 0, top),
    what,
    scale: scaleWords(scale, top, over, beyondWord(palette), reach, nouns),
    beyond: over.others + over.same > 0,
    packed,
  };
}

/** A scale in words: where it ends, and what is beyond it. */
function scaleWords(
  scale: "clipped" | "sqrt" | "linear",
  top: number,
  over: ReturnType<typeof beyond>,
  mark: string,
  reach: string,
  { same, one, several }: Nouns,
): string {
  const words = `${SCALE_WORDS[scale]} up to ${number(top)}${reach}`;
  const others = `${over.others} ${over.same > 0 ? "other " : ""}${over.others === 1 ? one : several}`;
  const named = [over.same > 0 && same, over.others > 0 && others].filter(Boolean).join(" and ");
  return named === "" ? words : `${words}; beyond it, ${mark}: ${named}, up to ${number(over.largest)}`;
}

export function diverging(
  map: Float32Array,
  mask: Mask,
  options: { scale: Scale; top: number; what: string; dark: boolean; left?: (k: number) => boolean },
): Colouring {
  const { scale, top, what, dark, left = () => false } = options;
  const signed = dark ? darkDiverging : (t: number) => interpolateRdBu(1 - t);
  const colour = (t: number) => (t < 0 ? (dark ? DARK.line : LIGHT.line) : signed(t));
  const packed = pack(colour);
  if (scale === "rank") {
    const sizes = map.map(Math.abs);
    const place = rankPlaces(sizes, mask);
    const ticks = [
      { t: 0, label: "damped" },
      { t: 0.5, label: "0" },
      { t: 1, label: "amplified" },
    ];
    const at = (k: number) => (left(k) ? -1 : 0.5 + 0.5 * Math.sign(map[k]) * place[k]);
    return { at, colour, ticks, what: `rank of the ${what}`, packed };
  }
  const root = scale !== "linear";
  // What is beyond the scale has its last colour.
  const half = (value: number) => 0.5 * Math.min(1, root ? Math.sqrt(value / top) : value / top);
  const at = (k: number) => {
    if (left(k)) return -1;
    return map[k] < 0 ? 0.5 - half(-map[k]) : 0.5 + half(map[k]);
  };
  const positions = scaleFor(scale, top);
  const ticks = ticksOf(positions, 0, top, 3, 0.25).flatMap(({ t, label }) =>
    t === 0
      ? [{ t: 0.5, label: "0" }]
      : [
          { t: 0.5 - t / 2, label: `−${label}` },
          { t: 0.5 + t / 2, label: `+${label}` },
        ],
  );
  return { at, colour, ticks, what, packed };
}

type Positions = (value: number) => number;

function scaleFor(scale: Scale, top: number): Positions & { ticks(count: number): number[] } {
  const made = scale === "linear" ? scaleLinear() : scalePow().exponent(0.5);
  return made.domain([0, top]).range([0, 1]) as unknown as Positions & { ticks(n: number): number[] };
}

function ticksOf(
  scale: Positions & { ticks(count: number): number[] },
  low: number,
  top: number,
  count = 5,
  gap = 0.12,
): { t: number; label: string }[] {
  const kept: { t: number; label: string }[] = [];
  for (const value of scale.ticks(count)) {
    if (value < low || value > top) continue;
    const t = scale(value);
    // Labels of a square-root scale crowd at its lower end.
    if (kept.length > 0 && t - kept[kept.length - 1].t < gap) continue;
    kept.push({ t, label: tick(value) });
  }
  return kept;
}

/** Ranks of the values between 0 and 1; equal values share a place. */
function rankPlaces(map: Float32Array, mask: Mask): Float32Array {
  const places = new Float32Array(map.length);
  const ranks = centredRanks(allowedValues(map, mask));
  if (ranks === null || ranks.length < 2) return places;
  const most = ranks.length - 1;
  for (let k = 0, at = 0; k < map.length; k++) {
    if (mask === null || mask[k]) places[k] = (ranks[at++] + most) / (2 * most);
  }
  return places;
}

function pack(colour: (t: number) => string): Uint32Array {
  const packed = new Uint32Array(256);
  for (let k = 0; k < 256; k++) packed[k] = packedColour(colour(k / 255));
  return packed;
}

/** A colour as image data has it. */
function packedColour(colour: string): number {
  const [r, g, b] = rgb(colour);
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

export function rgb(colour: string): [number, number, number] {
  if (colour.startsWith("#")) {
    const value = parseInt(colour.slice(1), 16);
    return [value >> 16, (value >> 8) & 255, value & 255];
  }
  const [r, g, b] = (colour.match(/[\d.]+/g) ?? ["0", "0", "0"]).map(Number);
  return [Math.round(r), Math.round(g), Math.round(b)];
}

/** Black or white, whichever is readable on a colour. */
export function readableOn(colour: string): string {
  const [r, g, b] = rgb(colour).map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? "#000000" : "#ffffff";
}

/** One pixel per pair: [target, source] as a small canvas. */
export function pixels(
  colouring: Colouring,
  { rows, columns }: { rows: number; columns: number },
  mask: Mask,
  blank: string,
): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  const image = context.createImageData(columns, rows);
  const colours = new Uint32Array(image.data.buffer);
  const [empty, left, over] = [blank, colouring.colour(-1), colouring.colour(2)].map(packedColour);
  for (let k = 0; k < colours.length; k++) {
    if (mask !== null && !mask[k]) {
      colours[k] = empty;
      continue;
    }
    const t = colouring.at(k);
    if (t > 1) colours[k] = over;
    else if (t < 0) colours[k] = left;
    else colours[k] = t >= 0 ? colouring.packed[(t * 255 + 0.5) | 0] : empty;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

const general = format(".3~g");
const small = format(".2e");
const whole = format(",.0f");

/** A number as a person reads it: three digits that matter. */
export function number(value: number): string {
  if (Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return minus(whole(value));
  return minus(size !== 0 && size < 1e-3 ? small(value) : general(value));
}

/** A number for a narrow place: two digits that matter, at most three decimals. */
export function brief(value: number): string {
  const size = Math.abs(value);
  if (Number.isNaN(value)) return "–";
  if (size < 0.0005) return "0";
  if (size >= 100) return minus(whole(value));
  const decimals = size < 0.1 ? 3 : size < 10 ? 2 : 1;
  return minus(value.toFixed(decimals));
}

export function signed(value: number): string {
  return (value > 0 ? "+" : "") + number(value);
}

/** Colours for numbers of both signs, by their size on the clipped scale of maps.
 *
 * `others` come behind them and share the scale. What is beyond it has the scale's last colour.
 */
export function signedColours(values: ArrayLike<number>, others: ArrayLike<number>, what: string, dark: boolean): Colouring {
  const sizes = Float32Array.from([...Array.from(values), ...Array.from(others)], Math.abs);
  const largest = sizes.reduce((most, value) => (value < Infinity ? Math.max(most, value) : most), 0);
  const top = clippedEnd(sizes.slice(0, values.length)) || largest || 1;
  const over = sizes.filter((value) => value > top).length;
  const map = Float32Array.from([...Array.from(values), ...Array.from(others)]);
  const colours = diverging(map, null, { scale: "clipped", top, what, dark });
  const beyond = over === 0 ? "" : `; ${over} ${over === 1 ? "is" : "are"} beyond it, up to ${number(largest)}`;
  return { ...colours, top, scale: `${SCALE_WORDS.clipped} up to ±${number(top)}${beyond}`, ticks: spaced(colours.ticks) };
}

/** Ticks without those whose labels would touch: from the ends inwards, on both sides alike. */
function spaced(ticks: Colouring["ticks"]): Colouring["ticks"] {
  // Rounded, because ½ + t and ½ − t are not equally far from ½ in floating point.
  const away = (t: number) => Math.round(1e6 * Math.abs(t - 0.5)) / 1e6;
  const places = [...new Set(ticks.map(({ t }) => away(t)))].sort((a, b) => b - a);
  const kept: number[] = [];
  for (const place of places) {
    if (place === 0 || (place > 0.13 && (kept.at(-1) ?? 1) - place > 0.13)) kept.push(place);
  }
  return ticks.filter(({ t }) => kept.includes(away(t)));
}

/** The same for a narrow place. */
export function signedBrief(value: number): string {
  const text = brief(value);
  return value > 0 && text !== "0" ? `+${text}` : text;
}

export function tick(value: number): string {
  return value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)
    ? minus(format(".1~e")(value))
    : minus(format(".4~g")(value));
}

export function scientific(value: number): string {
  return minus(format(".1e")(value));
}

function minus(text: string): string {
  return text.replace(/-/g, "−");
}
