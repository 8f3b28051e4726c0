// Finding tokens in a long text: each match in turn is pinned, and the map moves there.

import { h } from "./dom";
import type { Size, State } from "./state";

const FEWEST = 16; // tokens from which a search is offered
const WINDOW = 40; // tokens that are shown around a match

/** The tokens that a search finds: the neighbours whose texts, joined, contain the words. */
export function matches(labels: string[], query: string): number[] {
  const plain = (text: string) => text.replace(/[␣▁Ġ]/g, " ").normalize("NFKC").toLowerCase();
  const wanted = plain(query).trim();
  if (wanted === "") return [];
  // Some tokenizers mark the beginnings of words, others what goes on with one (“##ing”).
  const marked = labels.some((label) => /^[␣▁Ġ]/.test(label));
  let text = "";
  const begins = labels.map((label) => {
    const at = text.length;
    const bare = plain(label);
    const goesOn = bare.startsWith("##") && bare.length > 2;
    text += goesOn ? bare.slice(2) : marked || text === "" ? bare : ` ${bare}`;
    return at;
  });
  const found: number[] = [];
  for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + 1)) {
    const token = tokenAt(begins, text, at);
    if (found.at(-1) !== token) found.push(token);
  }
  return found;
}

/** The token that the character at a place belongs to; a space belongs to the token behind it. */
function tokenAt(begins: number[], text: string, at: number): number {
  const place = text[at] === " " ? at + 1 : at;
  let token = begins.length - 1;
  while (token > 0 && begins[token] > place) token--;
  return token;
}

/** So many rows and columns of a long map, around one token; null where all of them fit. */
export function around(token: number, { rows, columns }: Size): State["zoom"] {
  if (rows <= WINDOW || columns !== rows) return null;
  const from = Math.max(0, Math.min(token - WINDOW / 2, rows - WINDOW));
  return { rows: [from, from + WINDOW], columns: [from, from + WINDOW] };
}

export class TokenSearch {
  readonly el: HTMLElement;
  private readonly input = h("input", {
    type: "search", size: 14, placeholder: "word or part", "data-field": "search", spellcheck: "false",
    title: "Enter pins the next match, Shift and Enter the one before",
  });
  private readonly count = h("span", { class: "note", role: "status", "data-role": "found" });
  private labels: string[] = [];
  private found: number[] = [];
  private at = -1;

  constructor(private readonly go: (token: number) => void) {
    this.el = h(
      "label",
      { class: "control search", hidden: true },
      h("span", { class: "label" }, "Find token"),
      this.input,
      this.count,
    );
    this.input.addEventListener("input", () => this.search());
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        this.input.value = "";
        this.search();
      }
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.step(event.shiftKey ? -1 : 1);
    });
  }

  /** Searches these tokens from now on. */
  set(labels: string[], wanted: boolean): void {
    this.el.hidden = !wanted || labels.length < FEWEST;
    if (labels === this.labels) return;
    this.labels = labels;
    this.search();
  }

  private search(): void {
    this.found = matches(this.labels, this.input.value);
    this.at = -1;
    this.say();
  }

  private step(by: 1 | -1): void {
    if (this.found.length === 0) return;
    const next = this.at < 0 && by < 0 ? -1 : this.at + by;
    this.at = (next + this.found.length) % this.found.length;
    this.say();
    this.go(this.found[this.at]);
  }

  private say(): void {
    const { found, at } = this;
    const many = `${found.length} found`;
    this.count.textContent = this.input.value.trim() === "" ? "" : at < 0 ? many : `${at + 1} of ${found.length}`;
  }
}
