// The controls of the page of maps.

import type { Palette } from "./colours";
import { buttons, h, list } from "./dom";
import type { Sources } from "./groups";
import type { Axis } from "./measures";
import type { Scale } from "./scale";
import { stackControl, type Stack } from "./stacks";
import type { State, View } from "./state";

/** What the controls do beyond changing the state. */
interface Actions {
  stack(stack: Stack): void;
  direction(direction: State["direction"]): void;
  amplification(): void;
}

export function makeControls(update: (patch: Partial<State>) => void, actions: Actions) {
  const set = <K extends keyof State>(name: K) => (value: State[K]) =>
    update({ [name]: value } as unknown as Partial<State>);
  return {
    view: buttons<View>(
      "View",
      [
        { value: "map", label: "Map" },
        { value: "heads", label: "Heads", title: "The layer’s attention head by head" },
        { value: "picture", label: "Picture", title: "A row or a column of the map over the picture" },
        { value: "compare", label: "Compare" },
        { value: "overview", label: "Overview" },
      ],
      set("view"),
      "view",
    ),
    direction: buttons<State["direction"]>(
      "Shows",
      [
        { value: "row", label: "what it receives", title: "The row of the token: what it receives from each patch" },
        { value: "column", label: "what it gives", title: "The column of the token: what each patch receives from it" },
      ],
      actions.direction,
      "direction",
    ),
    form: buttons<State["form"]>(
      "As",
      [
        { value: "heat", label: "heat map" },
        { value: "arcs", label: "arcs" },
      ],
      set("form"),
      "form",
    ),
    scale: buttons<Scale>(
      "Colours",
      [
        { value: "clipped", label: "clipped", title: "Square root; outliers and i = j do not stretch the scale" },
        { value: "sqrt", label: "√", title: "Square root up to the largest value" },
        { value: "linear", label: "linear", title: "Linear up to the largest value" },
        { value: "rank", label: "rank", title: "By rank among the allowed pairs" },
      ],
      set("scale"),
      "scale",
    ),
    diagonal: buttons<"show" | "hide">(
      "i = j",
      [
        { value: "show", label: "show" },
        { value: "hide", label: "hide", title: "Leave the pairs of a token with itself out, of pictures and their scale" },
      ],
      (value) => update({ diagonal: value === "show" }),
      "diagonal",
    ),
    head: list("Head", (value) => update({ head: value === "" ? null : Number(value) }), "head"),
    norm: buttons<Axis>(
      "Sums to 1",
      [
        { value: "none", label: "neither" },
        { value: "source", label: "columns", title: "Each source’s column sums to 1" },
        { value: "target", label: "rows", title: "Each target’s row sums to 1" },
      ],
      set("norm"),
      "norm",
    ),
    range: buttons<State["range"]>(
      "Range",
      [
        { value: "map", label: "this map" },
        { value: "layer", label: "layer", title: "Shared by the scopes of the layer; in a comparison by both maps" },
        { value: "all", label: "all", title: "Shared by all layers and scopes" },
      ],
      set("range"),
      "range",
    ),
    stack: stackControl(actions.stack),
    sources: buttons<Sources>(
      "Columns",
      [
        { value: "both", label: "both" },
        { value: "encoder", label: "encoder", title: "Hide the decoder’s columns" },
        { value: "decoder", label: "decoder", title: "Hide the encoder’s columns" },
      ],
      set("sources"),
      "sources",
    ),
    palette: list("Palette", (value) => update({ palette: value as Palette }), "palette"),
    special: buttons<"show" | "hide">(
      "Special tokens",
      [
        { value: "show", label: "show" },
        { value: "hide", label: "hide" },
      ],
      (value) => update({ special: value === "show" }),
      "special",
    ),
    names: buttons<State["names"]>(
      "Names",
      [
        { value: "plain", label: "plain" },
        { value: "papers", label: "the papers’", title: "ATTN, RES, LN, FF, as in Kobayashi et al." },
      ],
      set("names"),
      "names",
    ),
    level: buttons<State["level"]>(
      "Level",
      [
        { value: "subwords", label: "subwords" },
        { value: "words", label: "words", title: "Columns of a word summed, rows averaged" },
      ],
      set("level"),
      "level",
    ),
    amplification: h(
      "button",
      {
        type: "button",
        "data-action": "ff-amp",
        title: "What the feed-forward block amplifies and damps in this layer",
        onclick: () => actions.amplification(),
      },
      "FF-amp",
    ),
    item: list("Text", (value) => update({ item: Number(value) }), "item"),
    zoom: h(
      "button",
      { type: "button", "data-action": "zoom-out", onclick: () => update({ zoom: null }) },
      "Zoom out (Esc)",
    ),
  };
}
