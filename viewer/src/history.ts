// What was asked in this tab: it outlives a reload, and the server often still has the answers.

import { h, replace } from "./dom";
import { holds, isQuestion, sameQuestion, type Ask, type Mode } from "./requests";

const PLACE = "normlens-history";
const MOST = 30;
const KINDS: Record<Mode, string> = { maps: "maps", explain: "explanation", cosine: "cosine" };

/** The history with one more question in front; what its answer holds, too, is no longer listed. */
export function remembered(asks: Ask[], ask: Ask): Ask[] {
  return [ask, ...asks.filter((old) => !holds(ask, old))].slice(0, MOST);
}

export class History {
  readonly el: HTMLElement;
  private readonly heading = h("summary", {});
  private readonly entries = h("ol", { class: "asked" });
  private asks: Ask[] = [];
  private current: Ask | null = null;

  constructor(private readonly choose: (ask: Ask) => void) {
    this.el = h("details", { class: "history", "data-role": "history", hidden: true }, this.heading, this.entries);
    try {
      const kept: unknown = JSON.parse(sessionStorage.getItem(PLACE) ?? "[]");
      if (Array.isArray(kept)) this.asks = kept.filter(isQuestion);
    } catch {
      // A browser that keeps nothing has a history until the page is left.
    }
    this.render();
  }

  add(ask: Ask): void {
    this.asks = remembered(this.asks, ask);
    try {
      sessionStorage.setItem(PLACE, JSON.stringify(this.asks));
    } catch {
      // As above.
    }
    this.render();
  }

  /** Marks what is looked at. */
  mark(ask: Ask | null): void {
    this.current = ask;
    this.render();
  }

  private render(): void {
    this.el.hidden = this.asks.length === 0;
    replace(this.heading, `History (${this.asks.length})`);
    replace(this.entries, ...this.asks.map((ask) => this.entry(ask)));
  }

  private entry(ask: Ask): HTMLElement {
    const second = ask.pair || ask.targetText;
    const here = this.current !== null && sameQuestion(this.current, ask);
    return h(
      "li",
      {},
      h(
        "button",
        { type: "button", "aria-current": here ? "true" : null, onclick: () => this.choose(ask) },
        h("bdi", { class: "what" }, ask.text),
        second !== "" && h("bdi", { class: "what" }, second),
        h("span", { class: "note" }, [ask.model, KINDS[ask.mode], ask.rule !== "ig" && ask.rule, ask.heads && "heads"].filter(Boolean).join(", ")),
      ),
    );
  }
}
