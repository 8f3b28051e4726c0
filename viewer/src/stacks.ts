// The two stacks of an encoder–decoder: an item's maps are its decoder's, with the encoder's beside them.

import { buttons, type Control } from "./dom";

/** Of a model of one stack, "decoder" stands for that one. */
export type Stack = "decoder" | "encoder";

interface OfStacks<T> {
  encoder?: T | null;
}

/** The maps of a stack, or the header of them. */
export function stackOf<T extends OfStacks<T>>(item: T, stack: Stack): T {
  return stack === "encoder" ? (item.encoder ?? item) : item;
}

/** The stack that a word names, as far as an item has it. */
export function stackIn<T extends OfStacks<T>>(item: T, word: string | undefined): Stack {
  return word === "encoder" && item.encoder ? "encoder" : "decoder";
}

/** What people call a layer: its number, behind its stack where the model has two. */
export function layerWords({ stack }: { stack: string | null }, layer: number): string {
  return stack === null ? `layer ${layer}` : `${stack} layer ${layer}`;
}

export function stackControl(change: (stack: Stack) => void): Control<Stack> {
  return buttons<Stack>(
    "Stack",
    [
      { value: "encoder", label: "Encoder", title: "The encoder’s own maps, of the source" },
      { value: "decoder", label: "Decoder", title: "The decoder’s maps: sources are the encoder’s tokens and its own" },
    ],
    change,
    "stack",
  );
}
