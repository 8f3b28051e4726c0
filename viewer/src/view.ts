// What the views share.

import { isolate } from "./bidi";
import type { Ink } from "./colours";
import type { Cell } from "./heatframe";
import type { Item } from "./payload";
import type { Row } from "./save";
import type { Shown } from "./shown";
import type { Stack } from "./stacks";
import type { State } from "./state";

export interface Context {
  readonly state: State;
  readonly items: Item[];
  readonly ink: Ink;
  readonly caption: string;
  /** What a saved figure of some maps says below it: their text, and how they were made. */
  captionOf(ref: { item: number; stack: Stack }): string;
  update(patch: Partial<State>): void;
  shown(ref: { item: number; stack: Stack }): Shown;
  /** The maps that a place is in: an item's, or its encoder's. */
  itemOf(ref: { item: number; stack: Stack }): Item;
  room(): { width: number; height: number };
  tooltip(lines: string[] | null, event: PointerEvent | null): void;
  say(text: string): void;
  /** Asks for the heads of the maps that are looked at, where a server can be asked. */
  readonly askForHeads: (() => void) | null;
  /** Whether a newer drawing has begun, so that this one may stop. */
  stale(): boolean;
}

export interface Panel {
  readonly el: HTMLElement;
  render(): Promise<void>;
  saved(): Promise<SVGElement>;
  table(): Promise<Row[]>;
  /** The value of a pair in words, for the keyboard's cursor. */
  describe(cell: Cell): string;
}

/** The text of an item in one line: of an encoder–decoder, source and target. */
export function textOf({ header }: Item): string {
  const between = header.stack === "decoder" ? " → " : " / ";
  return (header.text ?? []).join(between).replace(/\s+/g, " ");
}

export function itemName(item: Item, index: number, items: Item[]): string {
  const text = textOf(item);
  const short = text.length > 48 ? `${text.slice(0, 47)}…` : text;
  const model = item.header.model;
  const name = short === "" ? model : `${isolate(short)} (${model})`;
  return items.length > 1 ? `${index + 1}: ${name}` : name;
}
