// Which map a side of a comparison shows.

import { h, list } from "./dom";
import { stackIn, type Stack } from "./stacks";
import type { Ref } from "./state";
import { itemName, type Context } from "./view";

/** Lists of items, layers and scopes for one side of the comparison. */
export class RefChoice {
  readonly el: HTMLElement;
  private readonly item;
  private readonly stack;
  private readonly layer;
  private readonly scope;
  private ref: Ref | null = null;

  constructor(
    private readonly letter: "A" | "B",
    private readonly context: Context,
    change: (ref: Ref) => void,
  ) {
    const set = (patch: Partial<Ref>) => {
      if (this.ref === null) return;
      const ref = { ...this.ref, ...patch };
      ref.stack = stackIn(context.items[ref.item], ref.stack);
      const { layers, scopes } = context.itemOf(ref).header;
      const scope = scopes.includes(ref.scope) ? ref.scope : scopes[scopes.length - 1];
      change({ ...ref, scope, layer: Math.min(ref.layer, layers.length - 1) });
    };
    const name = letter.toLowerCase();
    this.item = list(`${letter}: text`, (value) => set({ item: Number(value) }), `${name}-item`);
    this.stack = list(`${letter}: stack`, (stack) => set({ stack: stack as Stack }), `${name}-stack`);
    this.layer = list(`${letter}: layer`, (value) => set({ layer: Number(value) }), `${name}-layer`);
    this.scope = list(`${letter}: scope`, (scope) => set({ scope }), `${name}-scope`);
    this.el = h(
      "div",
      { class: "row", role: "group", "aria-label": `Map ${this.letter}` },
      this.item.el,
      this.stack.el,
      this.layer.el,
      this.scope.el,
    );
  }

  set(ref: Ref): void {
    this.ref = ref;
    const { items } = this.context;
    const { layers, scopes } = this.context.itemOf(ref).header;
    const stacks: [string, string][] = [["encoder", "Encoder"], ["decoder", "Decoder"]];
    this.stack.set(ref.stack, items[ref.item].encoder === null ? [] : stacks);
    this.item.set(String(ref.item), items.map((item, k) => [String(k), itemName(item, k, items)]));
    this.layer.set(String(ref.layer), layers.map((layer, k) => [String(k), String(layer)]));
    this.scope.set(ref.scope, scopes.map((scope) => [scope, scope]));
  }
}
