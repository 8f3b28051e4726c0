import assert from "node:assert/strict";
import { test } from "node:test";

import { askOf, bodyOf, problemOf, wordsOf, type Ask } from "../src/requests";

const ask: Ask = {
  mode: "explain", model: "smollm2", text: "The keys to the cabinet", pair: "", targetText: "", rule: "gradient",
  target: " are", contrast: "␣is", position: "-1",
};

test("a question survives its address", () => {
  const words = wordsOf(ask);
  assert.equal(words.mode, "explain");
  assert.deepEqual(askOf(words), ask);
  const cosine: Ask = { ...ask, mode: "cosine", pair: "Two texts", rule: "ig", target: "", contrast: "", position: "" };
  assert.deepEqual(wordsOf(cosine), { mode: "cosine", model: "smollm2", text: ask.text, pair: "Two texts" });
  const maps: Ask = { ...cosine, mode: "maps", rule: "shapley" };
  assert.deepEqual(wordsOf(maps, "2"), { model2: "smollm2", text2: ask.text, pair2: "Two texts", rule2: "shapley" });
  assert.deepEqual(askOf(wordsOf(maps, "2"), "2"), maps);
});

test("a target text goes to the server, and into the address", () => {
  const asked: Ask = { ...ask, mode: "maps", rule: "ig", targetText: "La maison", target: "", contrast: "", position: "" };
  assert.deepEqual(wordsOf(asked), { model: "smollm2", text: ask.text, target_text: "La maison" });
  assert.deepEqual(askOf(wordsOf(asked, "2"), "2"), asked);
  assert.deepEqual(bodyOf(asked), { model: "smollm2", text: ask.text, pair: null, rule: "ig", target_text: "La maison" });
  assert.equal(bodyOf({ ...asked, targetText: " " }).target_text, undefined);
});

test("an address that does not fit is as usual", () => {
  const found = askOf({ mode: "magic", text: "a", rule: "magic" });
  assert.deepEqual([found.mode, found.rule, found.target], ["maps", "ig", ""]);
  assert.equal(askOf({ mode: "explain", rule: "shapley" }).rule, "ig");
});

test("what is sent is what the server takes", () => {
  assert.deepEqual(bodyOf(ask), {
    model: "smollm2", text: ask.text, pair: null, rule: "gradient", target: " are", contrast: " is", position: -1,
  });
  const open = bodyOf({ ...ask, target: "", contrast: " #12 ", position: " " });
  assert.deepEqual([open.target, open.contrast, open.position], [null, 12, null]);
  assert.deepEqual(bodyOf({ ...ask, mode: "cosine", pair: "b" }), { model: "smollm2", text: ask.text, pair: "b", rule: "gradient" });
});

test("what is wrong is said before it is sent", () => {
  assert.equal(problemOf(ask), null);
  assert.match(problemOf({ ...ask, text: " \n" }) ?? "", /text is empty/);
  assert.match(problemOf({ ...ask, position: "two" }) ?? "", /whole number, not “two”/);
  assert.match(problemOf({ ...ask, mode: "cosine", pair: " " }) ?? "", /needs two/);
  assert.equal(problemOf({ ...ask, mode: "maps", position: "two" }), null);
});
