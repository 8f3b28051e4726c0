// Explanations and cosines: what Python computes from them, this code computes from their payload.
import assert from "node:assert/strict";
import { test } from "node:test";

import fixture from "./fixture.json";
import { signedColours } from "../src/colours";
import { barsOf, headsOf } from "../src/componentview";
import { Base64Source, BytesSource } from "../src/container";
import { openCosines, packedCosines } from "../src/cosine";
import { openExplanations, packedExplanations } from "../src/explanation";
import { crossings, onTheWay, picked, strongest } from "../src/flow";
import { unit } from "../src/scopes";
import { beginnings, layerName, type Sequences } from "../src/sequences";
import { folds } from "../src/tokenstrip";
import { facts, questionOf, sumOf } from "../src/verdict";

const { explanation, cosine } = fixture;
const levels = ["subwords", "words"] as const;

function near(found: ArrayLike<number>, wanted: number[], tolerance: number, what: string): void {
  assert.equal(found.length, wanted.length, what);
  for (let k = 0; k < wanted.length; k++) {
    assert.ok(Math.abs(found[k] - wanted[k]) <= tolerance, `${what} ${k}: ${found[k]}, ${wanted[k]}`);
  }
}

for (const level of levels) {
  for (const bits of ["32", "16"] as const) {
    test(`an explanation by ${level} with ${bits} bits`, async () => {
      const [item] = openExplanations(new Base64Source(explanation.payloads[bits]));
      const found = await item.at(level);
      const expected = explanation.expected[level];
      assert.deepEqual(found.labels, expected.tokens);
      assert.equal(found.position, expected.position);
      near(found.nodes, expected.nodes.flat(), 1e-5, "nodes");
      near(found.components, expected.components.flat(2), 1e-5, "components");
      near(found.heads, expected.heads.flat(2), 1e-5, "heads");
      // A word of two tokens sums four edges.
      const tolerance = bits === "32" ? 1e-5 : 4 * 4 * 3.2e-4;
      expected.flow.forEach((map, layer) => near(found.flow?.[layer] ?? [], map.flat(), tolerance, `flow ${layer}`));
    });
  }

  test(`a cosine by ${level}`, async () => {
    const [item] = openCosines(new Base64Source(cosine.payload));
    const found = await item.at(level);
    const expected = cosine.expected[level];
    assert.deepEqual([found.a.labels, found.b.labels], expected.tokens);
    near(found.matrix, expected.matrix.flat(), 1e-5, "matrix");
    near(found.a.margin, expected.margins[0], 1e-5, "margin of A");
    near(found.b.margin, expected.margins[1], 1e-5, "margin of B");
    const rest = Object.values(item.header.remainder).reduce((sum, value) => sum + value, 0);
    const all = found.matrix.reduce((sum, value) => sum + value, 0) + rest;
    assert.ok(Math.abs(all - item.header.value) < 1e-5);
  });
}

test("items of several payloads are packed into one", async () => {
  const [one] = openExplanations(new Base64Source(explanation.payloads["32"]));
  const [two] = openExplanations(new Base64Source(explanation.payloads["16"]));
  const again = openExplanations(new BytesSource(packedExplanations([one, two])));
  for (const [k, item] of [one, two].entries()) assert.deepEqual(await again[k].tokens(), await item.tokens());
  const [pair] = openCosines(new Base64Source(cosine.payload));
  const [same, copy] = openCosines(new BytesSource(packedCosines([pair, pair])));
  assert.deepEqual(await same.at("words"), await pair.at("words"));
  assert.deepEqual(await copy.at("subwords"), await pair.at("subwords"));
});

test("a payload of another kind or version is refused", () => {
  const source = new Base64Source(explanation.payloads["32"]);
  assert.throws(() => openCosines(source), /normlens-viewer-explanations, not normlens-viewer-cosines/);
  const bytes = Buffer.from(explanation.payloads["32"], "base64");
  const newer = Buffer.from(bytes.toString("latin1").replace('"version":1', '"version":2'), "latin1");
  assert.throws(() => openExplanations(new BytesSource(newer)), /version 2, this viewer reads version 1/);
});

test("the strongest edges carry at least the share, and no fewer would", () => {
  const flow = [Float32Array.from([4, -3, 0, 2]), Float32Array.from([NaN, 0.5, 0.25, 0.25])];
  const { edges, share, count, total } = strongest(flow, 2, 0.8, 100);
  assert.deepEqual(edges.map(({ value }) => value), [4, -3, 2]);
  assert.deepEqual(edges[1], { layer: 0, target: 0, source: 1, value: -3 });
  assert.deepEqual([share, count, total], [0.9, 6, 10]);
  assert.equal(strongest(flow, 2, 0.95, 100).edges.length, 4);
  assert.equal(strongest(flow, 2, 1, 100).share, 1);
  assert.deepEqual(strongest(flow, 2, 1, 2).edges.map(({ value }) => value), [4, -3]);
  assert.deepEqual(strongest([new Float32Array(4)], 2, 0.8, 9), { edges: [], share: 1, count: 0, total: 0 });
});

test("random edges are thinned exactly as by sorting them all", () => {
  let seed = 7;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647 - 0.5;
  const flow = Array.from({ length: 5 }, () => Float32Array.from({ length: 400 }, () => random() ** 5));
  const sizes = flow.flatMap((map) => Array.from(map, Math.abs)).sort((a, b) => b - a);
  const total = sizes.reduce((sum, size) => sum + size, 0);
  for (const share of [0.1, 0.5, 0.8, 0.99]) {
    let [kept, carried] = [0, 0];
    while (carried < share * total) carried += sizes[kept++];
    const found = strongest(flow, 20, share, Infinity);
    assert.ok(Math.abs(found.edges.length - kept) <= 1, `${found.edges.length}, ${kept}`);
    assert.ok(found.share >= share - 1e-9);
  }
});

test("edges that stay and edges that cross are thinned apart", () => {
  const flow = [Float32Array.from([100, 0.5, 0.3, 90])];
  assert.deepEqual(strongest(flow, 2, 0.8, 9).edges.map(({ value }) => value), [100, 90]);
  const { edges, share, count } = picked(flow, 2, 0.6, 9);
  assert.deepEqual(edges.map(({ value }) => value), [100, 90, 0.5]);
  assert.equal(count, 4);
  assert.ok(Math.abs(share - 190.5 / 190.8) < 1e-6);
  assert.equal(picked(flow, 2, 0.95, 1).edges.length, 3);
});

test("a token’s way follows edges from layer to layer", () => {
  const edge = (layer: number, source: number, target: number) => ({ layer, source, target, value: 1 });
  const edges = [edge(0, 0, 1), edge(0, 2, 2), edge(1, 1, 2), edge(1, 0, 0), edge(2, 2, 2), edge(2, 0, 1)];
  assert.deepEqual(onTheWay(edges, 0, 3), [true, false, true, false, true, false]);
  assert.deepEqual(onTheWay(edges, 1, 3), [false, false, false, false, false, false]);
  assert.deepEqual(onTheWay(edges, 2, 3), [false, true, false, false, false, false]);
});

test("crossings are the strongest edges between two tokens", () => {
  const flow = [Float32Array.from([9, 1, -5, 9]), Float32Array.from([9, 2, 3, 9])];
  assert.deepEqual(crossings(flow, 2, 3).map(({ value }) => value), [-5, 3, 2]);
  assert.deepEqual(crossings(flow, 2, 9, (_, source) => source === 0).map(({ layer, value }) => [layer, value]), [[0, -5], [1, 3]]);
});

test("bars are sums over positions, or one position’s part; biases are by layer", async () => {
  const [item] = openExplanations(new Base64Source(explanation.payloads["32"]));
  const explained = await item.tokens();
  const { component_names: names, biases, heads_per_layer: heads } = item.header;
  const expected = explanation.expected.subwords;
  const [attention, , unowned] = barsOf({ explained, names, biases, token: null, heads: null });
  const sums = expected.components.map((layer) => layer[0].reduce((sum, value) => sum + value, 0));
  near(attention.values, sums, 1e-5, "ATTN");
  assert.deepEqual(unowned.values, [0.25, 0, 0.125, 1]);
  const [alone] = barsOf({ explained, names, biases, token: 3, heads: null });
  near(alone.alone ?? [], expected.components.map((layer) => layer[0][3]), 1e-6, "alone");
  const byHead = headsOf({ explained, names, biases, token: null, heads });
  near(byHead, expected.heads.flat().map((row) => row.reduce((sum, value) => sum + value, 0)), 1e-5, "heads");
});

test("the question, its numbers and their sum are said in words", async () => {
  const [{ header }] = openExplanations(new Base64Source(explanation.payloads["32"]));
  assert.equal(questionOf(header), "Why 'soap' and not 'opera' after “##y” (2)?");
  assert.deepEqual(facts(header), [
    ["difference", "1.25"], ["soap", "3, p = 50.0 %"], ["opera", "1.75, p = 10.0 %"], ["remainder", "+1.38"],
  ]);
  assert.equal(sumOf(header, Float32Array.from([1, -2]), header.remainder), "−1 from 2 tokens + 1.38 from no token = 1.25");
  assert.deepEqual(facts({ ...header, contrast: null, probability: null })[0], ["score", "1.25"]);
});

test("colours of both signs have ticks on both sides, and say what is beyond them", () => {
  for (const top of [3.24, 1016, 0.1, 9.19]) {
    const { ticks, what, at } = signedColours([top, -top / 4], [-0.1 * top], "part", false);
    const signs = ticks.map(({ label }) => (label === "0" ? 0 : label.startsWith("+") ? 1 : -1));
    assert.equal(signs.filter((sign) => sign > 0).length, signs.filter((sign) => sign < 0).length);
    assert.ok(signs.includes(1) && signs.includes(0), String(top));
    assert.equal(what, "part");
    near([at(0), at(1)], [1, 0.25], 1e-6, "places");
  }
  assert.match(signedColours([1], [-2], "part", false).scale ?? "", /up to ±1; 1 is beyond it, up to 2$/);
  // A sink does not stretch the scale: 20 small numbers keep their colours.
  const sink = signedColours([...Array(20).fill(0.1), 50], [], "part", false);
  assert.equal(sink.top, Math.fround(0.4));
  near([sink.at(0), sink.at(20)], [0.75, 1], 1e-6, "places");
  assert.deepEqual(signedColours([0], [0], "part", true).at(0), 0.5);
});

test("long texts fold runs of tokens that contribute next to nothing", () => {
  const values = Array.from({ length: 1000 }, (_, k) => (k % 100 === 50 ? 1 : 0.001));
  const row = { name: "", labels: values.map(String), special: [], values, chosen: 7 };
  const colours = signedColours(values, [], "part", false);
  const runs = folds(row, colours);
  assert.deepEqual(runs.slice(0, 3), [[0, 7], [8, 50], [51, 150]]);
  assert.equal(runs.at(-1)?.[1], 1000);
  assert.deepEqual(folds({ ...row, labels: row.labels.slice(0, 200) }, colours), []);
});

test("maps from the input tokens say what their values are", () => {
  assert.equal(unit("FF-N", "none", {}), "norm of the part ‖Fᵢ(xⱼ)‖");
  assert.equal(unit("FF-N", "none", { origin: "layer" }), "norm of the part ‖Fᵢ(xⱼ)‖");
  assert.equal(unit("FF-N", "none", { origin: "input" }), "norm of what input token j gave");
  assert.equal(unit("ATTN-W", "none", {}), "attention weight");
  const rollout = { origin: "rollout", rollout: { method: "GlobEnc" } };
  assert.equal(unit("LN2-N", "none", rollout), "rollout (GlobEnc) up to this layer");
  assert.equal(unit("ATTN-W", "source", rollout), "share of each source’s column");
});

test("an encoder–decoder’s tokens and layers are told apart, and what each sequence supplies", async () => {
  const { translation } = fixture;
  const [first, second] = openExplanations(new Base64Source(translation.payload));
  const explained = await first.tokens();
  // Tokens of the target that come later than the prefix carry nothing, and are left out.
  assert.equal(explained.labels.length, 5);
  assert.equal(explained.position, 4);
  assert.deepEqual([...beginnings(explained)], [[0, "source"], [3, "prefix"]]);
  assert.deepEqual([0, 1, 2].map((layer) => layerName(explained, layer)), ["enc. 0", "dec. 0", "dec. 1"]);
  assert.equal((await first.at("words")).sequences?.source_tokens, translation.source_words);
  for (const [k, { header }] of [first, second].entries()) {
    const { shares } = header.sequences as Sequences;
    const wanted = translation.shares[k];
    assert.deepEqual(Object.keys(shares).sort(), Object.keys(wanted).sort());
    near(Object.values(shares) as number[], Object.values(wanted), 1e-7, "shares");
    assert.match(sumOf(header, explained.nodes, header.remainder, 3), /from the source [+−] .* from the prefix [+−] .* from no token = /);
    assert.match(questionOf(header), /after “.*” \([13]\)\?$/);
  }
  const whole = await second.tokens();
  const picture = { explained: whole, names: second.header.component_names, biases: second.header.biases, token: 5, heads: 4 };
  const cross = headsOf(picture, whole.cross as Float32Array);
  assert.ok(Number.isNaN(cross[0]) && Number.isNaN(cross[1]), "the encoder has no CROSS");
  near(cross.subarray(2), translation.cross_heads.slice(1).flatMap((layer) => layer.map((row) => row[5] as number)), 1e-6, "CROSS");
  const again = openExplanations(new BytesSource(packedExplanations([first, second])));
  assert.deepEqual(await again[1].tokens(), whole);
  const [one] = openExplanations(new Base64Source(explanation.payloads["32"]));
  assert.deepEqual([...beginnings(await one.tokens())], []);
  assert.equal(layerName(await one.tokens(), 2), "2");
});
