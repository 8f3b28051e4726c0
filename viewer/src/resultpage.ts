// What pages of explanations and of cosines have in common: items, a state, and one drawing at a time.

import type { Chrome, Page } from "./chrome";
import { scientific } from "./colours";
import { BytesSource, type Source } from "./container";
import { h } from "./dom";
import type { Row } from "./save";
import { targetWords } from "./stacks";

export interface ResultHeader {
  model: string;
  completeness: number | null;
  provenance: Record<string, unknown>;
  left_out: string[];
}

export interface Result {
  header: ResultHeader;
  source: Source;
}

export interface ResultState {
  item: number;
  level: "subwords" | "words";
}

export abstract class ResultPage<I extends Result, S extends ResultState> implements Page {
  readonly el = h("div", { class: "result" });
  readonly extras: HTMLElement[] = [];
  items: I[] = [];
  state!: S;
  protected readonly missing = h("p", { class: "missing", role: "note" });
  private serial = 0;
  private drawn = 0;

  constructor(protected readonly chrome: Chrome) {}

  /** What the root says is looked at. */
  abstract readonly kind: string;
  abstract readonly guide: string;
  protected abstract read(words: Record<string, string>): S;
  protected abstract write(state: S): Record<string, string>;
  /** Draws the state; `stale` says whether a newer one waits. */
  protected abstract draw(stale: () => boolean): Promise<void>;
  protected abstract packed(): Uint8Array;
  abstract key(event: KeyboardEvent, from: HTMLElement): boolean;
  abstract fileName(): string;
  abstract figure(): Promise<SVGElement>;
  abstract table(): Promise<Row[]>;
  abstract json(): unknown;

  get filled(): boolean {
    return this.items.length > 0;
  }

  get item(): I {
    return this.items[this.state.item];
  }

  open(items: I[], words: Record<string, string>): void {
    this.items = items;
    this.state = this.read(words);
    this.chrome.show(this);
    this.update({});
  }

  /** One more beside those at hand, which is then looked at. */
  add(item: I, words: Record<string, string> | null): void {
    const items = [...this.items, item];
    this.open(items, { ...(words ?? {}), item: String(items.length - 1) });
  }

  update(patch: Partial<S>): void {
    this.state = this.read(this.write({ ...this.state, ...patch }));
    this.chrome.around.changed(this.words());
    void this.render();
  }

  words(): Record<string, string> {
    return this.write(this.state);
  }

  redraw(): void {
    void this.render();
  }

  payload(): string {
    const { source } = this.items[0];
    return this.items.every((item) => item.source === source) ? source.base64() : new BytesSource(this.packed()).base64();
  }

  private async render(): Promise<void> {
    const mine = ++this.serial;
    const { root } = this.chrome;
    root.dataset.busy = "true";
    const stale = () => mine !== this.serial;
    try {
      const { header } = this.item;
      this.chrome.trust(this.provenance(header), this.version);
      this.missing.hidden = header.left_out.length === 0;
      this.missing.textContent = header.left_out.join(" ");
      await this.draw(stale);
      if (stale()) return;
      this.chrome.clear();
    } catch (error) {
      this.chrome.fail(error);
    }
    this.drawn++;
    Object.assign(root.dataset, { busy: "false", drawn: this.drawn, items: this.items.length, kind: this.kind });
  }

  /** Choices in a row; on a narrow page all but the first wait behind a button. */
  protected choices(first: HTMLElement, ...others: HTMLElement[]): HTMLElement {
    const more: HTMLElement = h("button", {
      type: "button", class: "options", "data-action": "more", "aria-expanded": "false",
      onclick: () => more.setAttribute("aria-expanded", String(more.getAttribute("aria-expanded") !== "true")),
    }, "More controls");
    return h("div", { class: "toolbar folded" }, first, more, ...others);
  }

  protected get version(): string {
    const versions = this.item.header.provenance.versions as Record<string, unknown> | undefined;
    return versions?.normlens ? `normlens ${String(versions.normlens)}` : "normlens";
  }

  protected provenance({ completeness, model, provenance: about }: ResultHeader): string[] {
    const tolerance = typeof about.tolerance === "number" ? ` (tolerance ${scientific(about.tolerance)})` : "";
    const words = [completeness === null ? "completeness not measured" : `completeness error ${scientific(completeness)}${tolerance}`];
    words.push(...targetWords(about));
    words.push(about.model_type ? `${model} (${String(about.model_type)})` : model);
    if (about.dtype) words.push(String(about.dtype));
    if (about.nonlinearity) words.push(`rule ${String(about.nonlinearity)}`);
    if (about.note) words.push(String(about.note));
    return words;
  }
}

/** One of some words, or the first of them. */
export function choice<T extends string>(given: string | undefined, choices: readonly T[]): T {
  return choices.includes(given as T) ? (given as T) : choices[0];
}

/** A place from an address, or null where it is none of `size`. */
export function place(given: string | undefined, size: number): number | null {
  const value = /^\d+$/.test(given ?? "") ? Number(given) : -1;
  return value >= 0 && value < size ? value : null;
}
