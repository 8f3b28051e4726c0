// Which experts each token used in the layer looked at, and with which weights.

import { brief } from "./colours";
import { h, replace } from "./dom";
import type { Routing } from "./payload";
import type { Context } from "./view";

/** The experts of a token and their weights: “e3 0.61”, “e7 0.39”, “shared 1.00”. */
export function expertWords(routing: Routing, layer: number, token: number, tokens: number): string[] {
  const { places, experts, weights, shared } = routing;
  const at = layer * tokens + token;
  const words = Array.from({ length: places }, (_, k) => {
    return `e${experts[at * places + k]} ${brief(weights[at * places + k])}`;
  });
  if (shared !== null) words.push(`shared ${brief(shared[at])}`);
  return words;
}

/** Words that stay whole where their line breaks, with dots between them. */
function spaced(words: string[]): (HTMLElement | string)[] {
  return words.flatMap((word, k) => [h("span", {}, k < words.length - 1 ? `${word} ·` : word), " "]);
}

/** A row of tokens with their experts, below the strip of components; a token leads to its row of the map. */
export class RoutingRow {
  readonly el: HTMLElement;
  private readonly heading = h("span", { class: "label" });
  private readonly chips = h("div", { class: "experts", role: "list" });

  constructor(private readonly context: Context) {
    this.el = h("div", { class: "routing", role: "group", "aria-label": "Experts", hidden: true }, this.heading, this.chips);
  }

  async render(): Promise<void> {
    const { context } = this;
    const { state } = context;
    const shown = context.shown(state);
    const { header } = shown.item;
    const routing = await shown.item.routing();
    const number = header.layers[state.layer];
    const layer = routing?.layers.indexOf(number) ?? -1;
    const seen = state.view === "map" || state.view === "picture";
    // Routing belongs to tokens: words have none.
    this.el.hidden = routing === null || layer < 0 || !seen || shown.rows.groups !== null;
    if (routing === null || this.el.hidden) return;
    const more = routing.shared === null ? "" : " and a shared one";
    this.heading.textContent = `Experts of layer ${number}: each token uses ${routing.places} of ${routing.count}${more}`;
    const key = JSON.stringify([state.item, state.stack, layer, state.special]);
    if (this.chips.dataset.shown !== key) {
      this.chips.dataset.shown = key;
      replace(this.chips, ...shown.rows.labels.map((label, index) => {
        const token = shown.rows.keep?.[index] ?? index;
        return this.chip(label, index, expertWords(routing, layer, token, header.tokens.length));
      }));
    }
    const chosen = state.pin?.axis === "row" ? state.pin.index : null;
    this.chips.querySelectorAll("button").forEach((button, index) => {
      button.setAttribute("aria-pressed", String(index === chosen));
    });
  }

  private chip(label: string, index: number, words: string[]): HTMLElement {
    const pin = () => {
      const old = this.context.state.pin;
      const again = old?.axis === "row" && old.index === index;
      this.context.update({ pin: again ? null : { axis: "row", index }, pair: null });
    };
    return h(
      "div",
      { role: "listitem" },
      h(
        "button",
        { type: "button", class: "expert-token", title: "Pin the row of this token", onclick: pin },
        h("span", { class: "text" }, label),
        h("span", { class: "weights" }, ...spaced(words)),
      ),
    );
  }
}
