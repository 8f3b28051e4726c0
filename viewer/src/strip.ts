// The layer's components in their order, and how much each of them changed the map.

import { h, replace } from "./dom";
import { added, chain, plain, steps } from "./scopes";
import type { Context } from "./view";

const PERIOD = 1100; // milliseconds between two steps while playing

export class Strip {
  readonly el: HTMLElement;
  private readonly row = h("div", { class: "chain", role: "group", "aria-label": "Components of the layer" });
  private readonly player;
  private timer: number | null = null;
  private shownFor = "";

  constructor(private readonly context: Context) {
    this.player = h("button", { type: "button", class: "play", "data-action": "play", onclick: () => this.toggle() });
    this.el = h(
      "div",
      { class: "strip" },
      h(
        "div",
        { class: "row", role: "group", "aria-label": "Grow the map" },
        this.player,
        h("button", { type: "button", "aria-label": "Previous component", title: "Previous component (←)", "data-action": "back", onclick: () => this.step(-1) }, "‹"),
        h("button", { type: "button", "aria-label": "Next component", title: "Next component (→)", "data-action": "forward", onclick: () => this.step(1) }, "›"),
      ),
      this.row,
    );
    this.showPlaying();
  }

  async render(): Promise<void> {
    const { context } = this;
    const { state } = context;
    const shown = context.shown(state);
    const names = chain(shown.scopes);
    const changes = new Map(steps(shown.scopes).map(({ before, after }) => [after, before]));
    const aside = shown.scopes.filter((scope) => !names.includes(scope));
    const key = JSON.stringify([state.item, state.stack, shown.scopes]);
    if (key !== this.shownFor) {
      this.shownFor = key;
      replace(
        this.row,
        ...names.map((scope) => this.button(scope, added(scope, names), changes.has(scope))),
        ...aside.map((scope) => this.button(scope, scope === "ATTNRES-W" ? "baseline" : added(scope, names), false)),
      );
    }
    const buttons = [...this.row.querySelectorAll("button")];
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(button.dataset.scope === this.chosen()));
    }
    for (const [k, after] of names.entries()) {
      const before = changes.get(after);
      if (before === undefined) continue;
      const rho = await shown.rho(state.layer, before, after);
      if (context.stale()) return;
      this.showChange(buttons[k], after, before, 1 - rho);
    }
  }

  /** Through the components, and on into the next layer. */
  step(by: 1 | -1): boolean {
    const { state } = this.context;
    const shown = this.context.shown(state);
    // A comparison needs a scope before.
    const after = state.view === "compare" ? steps(shown.scopes).map((step) => step.after) : [];
    const names = after.length > 0 ? after : chain(shown.scopes);
    const at = names.indexOf(this.chosen());
    const next = (at < 0 ? (by > 0 ? -1 : names.length) : at) + by;
    if (next >= 0 && next < names.length) {
      this.choose(names[next]);
      return true;
    }
    const layer = state.layer + by;
    if (layer < 0 || layer >= shown.layers.length) return false;
    this.choose(by > 0 ? names[0] : names[names.length - 1], layer);
    return true;
  }

  /** The scope that the strip shows as chosen: of a comparison, the one after the step. */
  private chosen(): string {
    const { state } = this.context;
    return state.view === "compare" ? state.b.scope : state.scope;
  }

  /** Opens a scope; in a comparison the step that leads to it, or both sides where they differ in
   * text or layer.
   */
  private choose(scope: string, layer = this.context.state.layer): void {
    const { context } = this;
    const { state } = context;
    if (state.view !== "compare") return context.update({ scope, layer });
    const { scopes } = context.shown(state);
    const { a, b } = state;
    if (a.item !== b.item || a.stack !== b.stack || a.layer !== b.layer) {
      return context.update({ a: { ...a, scope }, b: { ...b, scope } });
    }
    const before = steps(scopes).find((step) => step.after === scope)?.before ?? scope;
    const place = { item: state.item, stack: state.stack, layer };
    context.update({ layer, a: { ...place, scope: before }, b: { ...place, scope } });
  }

  toggle(): void {
    if (this.timer === null) {
      this.timer = window.setInterval(() => {
        if (!this.el.isConnected || !this.step(1)) this.stop();
      }, PERIOD);
      this.step(1);
    } else this.stop();
    this.showPlaying();
  }

  stop(): void {
    if (this.timer !== null) window.clearInterval(this.timer);
    this.timer = null;
    this.showPlaying();
  }

  private showPlaying(): void {
    const playing = this.timer !== null;
    this.player.textContent = playing ? "❚❚ Pause" : "▶ Play";
    this.player.setAttribute("aria-pressed", String(playing));
    this.player.title = playing ? "Stop here (space)" : "Grow the map step by step (space)";
  }

  private button(scope: string, label: string, follows: boolean): HTMLElement {
    return h(
      "button",
      {
        type: "button",
        class: scope.endsWith("-W") ? "node weights" : "node",
        "data-scope": scope,
        title: scope,
        "aria-label": scope,
        onclick: () => this.choose(scope),
      },
      follows && h("span", { class: "arrow", "aria-hidden": "true" }, "→"),
      h("span", { class: "component" }, plain(label)),
      h("span", { class: "meter", "aria-hidden": "true" }, h("span", {})),
      h("span", { class: "change", "data-abbreviation": label }, follows ? label : scope),
    );
  }

  private showChange(button: HTMLButtonElement, scope: string, before: string, change: number): void {
    const known = !Number.isNaN(change);
    const text = known ? change.toFixed(3) : "–";
    const meter = button.querySelector<HTMLElement>(".meter > span");
    const note = button.querySelector<HTMLElement>(".change");
    if (meter !== null) meter.style.width = `${known ? Math.round(100 * Math.min(1, change)) : 0}%`;
    if (note !== null) note.textContent = `${note.dataset.abbreviation} · 1−ρ ${text}`;
    button.dataset.change = String(change);
    button.title = `${scope}: 1 − Spearman’s ρ to ${before} is ${text}`;
    button.setAttribute("aria-label", `${scope}, changed by ${text}`);
  }
}
