import assert from "node:assert/strict";
import { test } from "node:test";

import { chain, feedForward, resolve, shortName, steps } from "../src/scopes";
import { counterpart, fit, read, write } from "../src/state";
import { csv, standalone } from "../src/save";

const BERT = [
  "ATTN-W", "ATTNRES-W", "ATTN-N", "ATTNRES-N", "ATTNRESLN-N", "ATTNRESLNFF-N", "ATTNRESLNFFRES-N",
  "ATTNRESLNFFRESLN-N",
];
const NEOX = ["ATTN-W", "ATTNRES-W", "ATTN-N", "ATTNFF-N", "ATTNFFRES-N"];
const items = [
  { layers: [0, 1, 2], scopes: BERT, provenance: { components: "ATTN RES LN FF RES LN" } },
  { layers: [3, 7], scopes: NEOX, provenance: { components: "(LN) ATTN ∥ (LN) FF RES" } },
];

test("scopes have the short names that Python gives them", () => {
  assert.deepEqual(BERT.slice(2).map((scope) => shortName(scope, BERT)), ["ATTN", "RES1", "LN1", "FF", "RES2", "LN2"]);
  assert.equal(resolve("ln2", BERT), "ATTNRESLNFFRESLN-N");
  assert.equal(resolve("LN3", BERT), null);
});

test("steps follow the layer, and a parallel block amplifies nothing", () => {
  assert.deepEqual(steps(BERT).map((step) => step.component), ["ATTN", "RES", "LN", "FF", "RES", "LN"]);
  assert.ok(!chain(BERT).includes("ATTNRES-W"));
  assert.equal(feedForward(BERT, "ATTN RES LN FF RES LN")?.before, "ATTNRESLN-N");
  assert.equal(feedForward(NEOX, "(LN) ATTN ∥ (LN) FF RES"), null);
});

test("a state survives its address", () => {
  const words = {
    item: "1", layer: "7", scope: "ATTNFF-N", view: "compare", form: "arcs", scale: "rank", norm: "target",
    range: "all", palette: "cividis", special: "0", level: "words", cnorm: "none", pin: "row:3", pair: "1:2",
    zoom: "0:4:1:3", a: "0:1:ATTN-N", b: "1:3:ATTNFF-N",
  };
  const state = read(words, items);
  assert.equal(state.layer, 1);
  assert.deepEqual(state.a, { item: 0, stack: "decoder", layer: 1, scope: "ATTN-N" });
  assert.deepEqual(write(state, items), words);
});

const DECODER = [
  "ATTN-W", "ATTNRES-W", "CROSS-W", "ATTN-N", "ATTNRES-N", "ATTNRESLN-N", "ATTNRESLNCROSS-N", "ATTNRESLNCROSSRES-N",
  "ATTNRESLNCROSSRESLN-N", "ATTNRESLNCROSSRESLNFF-N",
];
const pairs = [
  {
    layers: [0, 1, 2], scopes: DECODER, provenance: {}, sources: {
      sequences: ["encoder", "encoder", "decoder"],
      held: { "ATTN-N": ["decoder"], "ATTNRESLNCROSS-N": ["encoder"], "ATTNRESLNCROSSRES-N": ["encoder", "decoder"] },
    },
    encoder: { layers: [0, 5], scopes: BERT, provenance: {} },
  },
];

test("scopes of a decoder have the short names that Python gives them", () => {
  assert.equal(resolve("CROSS-N", DECODER), "ATTNRESLNCROSS-N");
  assert.equal(resolve("cross", DECODER), "ATTNRESLNCROSS-N");
  assert.equal(shortName("ATTNRESLNCROSS-N", DECODER), "CROSS");
  assert.equal(shortName("ATTNRESLNCROSSRES-N", DECODER), "RES2");
  assert.deepEqual(steps(DECODER).map((step) => step.component), ["ATTN", "RES", "LN", "CROSS", "RES", "LN", "FF"]);
  assert.equal(steps(DECODER)[3].before, "CROSS-W");
  assert.deepEqual(chain(DECODER).slice(3, 6), ["ATTNRESLN-N", "CROSS-W", "ATTNRESLNCROSS-N"]);
  // Without its weights CROSS has no step: it shares no pairs with what stands before it.
  const others = DECODER.filter((scope) => scope !== "CROSS-W");
  assert.ok(!steps(others).some((step) => step.component === "CROSS"));
  assert.deepEqual(chain(["ATTN-W", "ATTNRES-W"]), ["ATTN-W"]);
});

test("a stack and its columns survive an address", () => {
  const first = read({}, pairs);
  assert.deepEqual([first.stack, first.sources, first.scope], ["decoder", "both", "ATTNRESLNCROSSRES-N"]);
  assert.equal(write(first, pairs).stack, undefined);
  const words = { layer: "5", scope: "ATTNRESLNFF-N", stack: "encoder", sources: "encoder", view: "compare", a: "0:5:ATTN-N:encoder", b: "0:1:ATTN-N" };
  const state = read(words, pairs);
  assert.deepEqual([state.layer, state.a.stack, state.a.layer, state.b.stack], [1, "encoder", 1, "decoder"]);
  assert.deepEqual(write(state, pairs), words);
  // An item without an encoder beside it has one stack.
  assert.deepEqual([read({ stack: "encoder" }, items).stack, read({ a: "0:1:ATTN-N:encoder" }, items).a.stack], ["decoder", "decoder"]);
  const size = { rows: 4, columns: 6 };
  assert.equal(fit(read({ pin: "row:5" }, pairs), pairs, size).pin, null);
  assert.deepEqual(fit(read({ pin: "column:5" }, pairs), pairs, size).pin, { axis: "column", index: 5 });
});

test("the other stack opens at the same component", () => {
  const here = { item: 0, stack: "decoder" as const, layer: 2, scope: "ATTNRESLNCROSSRESLNFF-N" };
  const there = counterpart(here, "encoder", pairs);
  assert.deepEqual(there, { item: 0, stack: "encoder", layer: 1, scope: "ATTNRESLNFF-N" });
  assert.deepEqual(counterpart(there, "decoder", pairs), { ...here, layer: 1 });
  // The encoder has no CROSS: its last scope.
  assert.equal(counterpart({ ...here, scope: "ATTNRESLNCROSS-N" }, "encoder", pairs).scope, "ATTNRESLNFFRESLN-N");
});

test("an address counts layers from 0, as the maps do", () => {
  const first = read({ layer: "0", view: "compare", a: "0:0:ATTN-N", b: "1:3:ATTN-N" }, items);
  assert.deepEqual([first.layer, first.a.layer, first.b.layer], [0, 0, 0]);
  assert.deepEqual([write(first, items).layer, write(first, items).a], ["0", "0:0:ATTN-N"]);
  assert.equal(read({ layer: "2" }, items).layer, 2);
  assert.equal(read({ item: "1", layer: "3" }, items).layer, 0);
  assert.equal(read({ item: "1", layer: "4" }, items).layer, 0); // not among them: the first
});

test("what does not fit is as usual", () => {
  const state = read({ layer: "99", scope: "XX", view: "?", item: "7", a: "9:1:ATTN-N", zoom: "4:1:0:9" }, items);
  assert.deepEqual([state.item, state.layer, state.scope, state.view], [0, 0, "ATTN-N", "map"]);
  assert.deepEqual([state.a.scope, state.b.scope, state.zoom], ["ATTNRESLN-N", "ATTNRESLNFF-N", null]);
  assert.equal(fit(read({ pin: "row:50" }, items), items, { rows: 10, columns: 99 }).pin, null);
});

test("a saved page lets nothing out of its script", () => {
  const page = standalone({
    title: "</title><script>alert(1)</script>", state: '"><img src=x>', payload: "AAAA",
    script: 'const a = "</script><!--";',
  });
  assert.equal(page.match(/<script/g)?.length, 2);
  assert.ok(!page.includes("<img"));
  assert.ok(!page.includes("<!--"));
  assert.ok(page.includes(">AAAA</script>"));
});

test("CSV quotes what needs it", () => {
  assert.equal(csv([["a", 1], ['say "x",\n', NaN]]), 'a,1\n"say ""x"",\n",\n');
});

test("a picture is shown first where there is one, and the pin says the direction", () => {
  const grid = { rows: 2, columns: 2, first: 1 };
  const image = { ...items[0], grid, tokens: Array.from({ length: 90 }, () => "") };
  const seen = [image, items[1]];
  const size = { rows: 5, columns: 5 };
  const first = read({}, seen);
  assert.deepEqual([first.view, first.direction, first.scale], ["picture", "row", "clipped"]);
  assert.deepEqual([write(first, seen).view, write({ ...first, view: "map" }, seen).view], [undefined, "map"]);
  const pinned = fit(read({ pin: "column:3" }, seen), seen, size);
  assert.deepEqual([pinned.direction, write(pinned, seen).pin, write(pinned, seen).direction], ["column", "column:3", undefined]);
  const turned = fit(read({ direction: "column" }, seen), seen, size);
  assert.deepEqual([turned.direction, write(turned, seen).direction], ["column", "column"]);
  // The other item has no picture.
  assert.equal(fit({ ...first, item: 1 }, seen, size).view, "map");
  assert.equal(fit(read({ view: "picture" }, items), items, size).view, "map");
});

test("a head, all layers’ heads and a hidden diagonal survive an address", () => {
  const item = {
    layers: [0, 4], scopes: ["ATTN-W", "ATTN-N", "ATTNRES-N", "ATTNRESCROSS-N"], provenance: {},
    heads: { "ATTN-N": [["a", "b"], null], "CROSS-N": [["a"], ["b"]] },
  };
  const given = { scope: "ATTN-N", head: "1", view: "heads", layers: "all", diagonal: "0" };
  const state = read(given, [item]);
  assert.deepEqual([state.head, state.layers, state.diagonal, state.view], [1, "all", false, "heads"]);
  assert.deepEqual(read(write(state, [item]), [item]), state);
  const size = { rows: 9, columns: 9 };
  // Where there is no such head, all of them together are shown.
  for (const other of [{ layer: 1 }, { scope: "ATTNRES-N" }, { scope: "ATTNRESCROSS-N" }, { scope: "ATTN-W" }]) {
    assert.equal(fit({ ...state, ...other }, [item], size).head, null);
  }
  assert.equal(fit({ ...state, layer: 1, scope: "ATTNRESCROSS-N", head: 0 }, [item], size).head, 0);
  for (const head of ["2", "-1", "x", ""]) assert.equal(read({ ...given, head }, [item]).head, null);
  assert.deepEqual([read({}, [item]).scale, read({}, [{ ...item, tokens: Array(500).fill("a") }]).scale], ["clipped", "clipped"]);
});
