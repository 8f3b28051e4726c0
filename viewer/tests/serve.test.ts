import assert from "node:assert/strict";
import { test } from "node:test";

import { remembered } from "../src/history";
import { askOf, bodyOf, holds, isQuestion, sameQuestion, wordsOf } from "../src/requests";
import { around, matches } from "../src/search";
import { likewise, type Known } from "../src/state";

const ask = askOf({ model: "minilm", text: "a b" });

test("heads are asked for in the body and in the address, and only of maps", () => {
  assert.equal("heads" in bodyOf(ask), false);
  const all = askOf({ model: "minilm", text: "a b", with_heads: "1" });
  assert.equal(bodyOf(all).heads, true);
  assert.deepEqual(askOf(wordsOf(all, "2"), "2"), all);
  assert.equal(askOf({ mode: "explain", text: "a", with_heads: "1" }).heads, undefined);
});

test("maps with heads answer the question without them, not the other way round", () => {
  const all = { ...ask, heads: true as const };
  assert.equal(holds(all, ask), true);
  assert.equal(holds(ask, all), false);
  assert.equal(sameQuestion(ask, all), false);
});

test("the history has each question once, the newest first", () => {
  const other = { ...ask, text: "c" };
  const asks = [ask, other, ask].reduce(remembered, []);
  assert.deepEqual(asks, [ask, other]);
  assert.deepEqual(remembered(asks, { ...other, heads: true }), [{ ...other, heads: true }, ask]);
  const many = Array.from({ length: 50 }, (_, k) => ({ ...ask, text: String(k) })).reduce(remembered, []);
  assert.deepEqual([many.length, many[0].text], [30, "49"]);
});

test("what a browser kept is read with suspicion", () => {
  assert.equal(isQuestion(ask), true);
  for (const thing of [null, 3, {}, { ...ask, mode: "magic" }, { ...ask, text: 4 }]) assert.equal(isQuestion(thing), false);
});

test("tokens are found by words, by parts and across subwords", () => {
  const bert = ["[CLS]", "em", "##bed", "##ding", "of", "beds", "[SEP]"];
  assert.deepEqual(matches(bert, "embedding"), [1]);
  assert.deepEqual(matches(bert, "BED"), [2, 5]);
  assert.deepEqual(matches(bert, "of beds"), [4]);
  assert.deepEqual(matches(bert, "  "), []);
  assert.deepEqual(matches(bert, "absent"), []);
  assert.deepEqual(matches(["␣the", "␣cat", "␣the"], "the"), [0, 2]);
  assert.deepEqual(matches(["␣hel", "lo", "␣lo"], "lo"), [1, 2]);
  assert.deepEqual(matches(["say", "␣hel", "lo"], "hello"), [1]);
});

test("a long map shows the part around a match", () => {
  assert.equal(around(3, { rows: 30, columns: 30 }), null);
  assert.deepEqual(around(3, { rows: 100, columns: 100 })?.rows, [0, 40]);
  assert.deepEqual(around(99, { rows: 100, columns: 100 })?.rows, [60, 100]);
  assert.deepEqual(around(50, { rows: 100, columns: 100 })?.columns, [30, 70]);
});

test("another model is compared at the place most like this one", () => {
  const known = (layers: number, scopes: string[]): Known => ({
    layers: Array.from({ length: layers }, (_, k) => k), scopes, provenance: {},
  });
  const items = [known(6, ["ATTN-W", "ATTN-N", "ATTNRES-N"]), known(3, ["ATTN-W", "ATTN-N"])];
  const here = { item: 0, stack: "decoder" as const, layer: 5, scope: "ATTN-N" };
  assert.deepEqual(likewise(here, { item: 1, stack: "decoder" }, items), { ...here, item: 1, layer: 2 });
  const gone = likewise({ ...here, scope: "ATTNRES-N" }, { item: 1, stack: "encoder" }, items);
  assert.deepEqual([gone.stack, items[1].scopes.includes(gone.scope)], ["decoder", true]);
});
