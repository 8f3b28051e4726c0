// Tokens of right-to-left scripts among words and arrows that read from left to right.

import { h } from "./dom";

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
const [FIRST_STRONG, END] = ["\u2068", "\u2069"]; // Unicode's isolate and its end

/** A line of text each of whose filled-in parts keeps its own direction: `${source} → ${target}`. */
export function isolated(words: TemplateStringsArray, ...parts: (string | number)[]): HTMLElement {
  return h("span", {}, ...words.flatMap((word, k) => [word, k < parts.length && h("bdi", {}, String(parts[k]))]));
}

/** The same for a string, where there is no place for elements: tooltips, choices, captions. */
export function isolate(text: string): string {
  return RIGHT_TO_LEFT.test(text) ? `${FIRST_STRONG}${text}${END}` : text;
}
