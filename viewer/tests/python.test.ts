// What Python computes from maps, this code computes from their payload.
import assert from "node:assert/strict";
import { test } from "node:test";

import fixture from "./fixture.json";
import { allowedValues, centredRanks, difference, ranksOfCodes, type Axis } from "../src/measures";
import { groupAt, type Sources } from "../src/groups";
import { Base64Source, BytesSource } from "../src/container";
import { beside, lineOf, patchesOf, patchName } from "../src/patches";
import { open, packed, type Item, type Picture, type Routing } from "../src/payload";
import { expertWords } from "../src/routing";
import { Shown } from "../src/shown";

type Expected = (typeof fixture.whole.expected)["subwords"];

const levels: [keyof typeof fixture.whole.expected, boolean, boolean][] = [
  ["subwords", true, false],
  ["words", true, true],
  ["without_special", false, false],
  ["words_without_special", false, true],
];

function near(found: ArrayLike<number>, wanted: number[], tolerance: number, what: string): void {
  assert.equal(found.length, wanted.length, what);
  for (let k = 0; k < wanted.length; k++) {
    const size = Math.abs(wanted[k]);
    assert.ok(Math.abs(found[k] - wanted[k]) <= tolerance * size + 1e-9, `${what}: ${found[k]}, ${wanted[k]}`);
  }
}

for (const name of ["whole", "causal"] as const) {
  for (const [level, special, words] of levels) {
    test(`${name} maps, ${level}, in float32`, async () => {
      const [item] = await open(new Base64Source(fixture[name].payloads["32"]));
      const shown = new Shown(item, special, words);
      const expected = fixture[name].expected[level] as unknown as Expected;
      assert.deepEqual(shown.rows.labels, expected.tokens);
      for (const [scope, layers] of Object.entries(expected.maps)) {
        for (const [layer, map] of layers.entries()) {
          near(await shown.map(scope, layer), map.flat(), 1e-6, `${scope} ${layer}`);
        }
      }
      for (const [layer, allowed] of expected.allowed.entries()) {
        const mask = shown.mask(layer);
        const flat = allowed.flat().map(Number);
        assert.deepEqual(mask === null ? flat.map(() => 1) : [...mask], flat);
      }
      for (const [pair, rhos] of Object.entries(expected.similarity)) {
        const [a, b] = pair.split("|");
        for (const [layer, rho] of rhos.entries()) {
          const found = await shown.rho(layer, a, b);
          assert.ok(Math.abs(found - rho) < 1e-8, `${pair} ${layer}: ${found}, ${rho}`);
        }
      }
      for (const [axis, layers] of Object.entries(expected.amplification)) {
        for (const [layer, map] of layers.entries()) {
          const [before, after] = await Promise.all(
            ["ATTNRESLN-N", "ATTNRESLNFF-N"].map((scope) => shown.map(scope, layer)),
          );
          const found = difference(before, after, shown.columns.size, axis as Axis);
          map.flat().forEach((value, k) => {
            assert.ok(Math.abs(found[k] - value) < 1e-6 * Math.max(1, Math.abs(value)), axis);
          });
        }
      }
      for (const [scope, ratios] of Object.entries(expected.mixing)) {
        near((await shown.mixing(scope)) ?? [], (ratios as number[][]).flat(), 1e-7, "mixing");
      }
      if (words) assert.equal(await shown.mixing("ATTN-N"), null);
    });
  }

  for (const bits of ["16", "8"] as const) {
    test(`${name} maps with ${bits} bits are as exact as the payload says`, async () => {
      const [item] = await open(new Base64Source(fixture[name].payloads[bits]));
      const { relative_error: error } = item.header.precision;
      assert.ok(error < (bits === "16" ? 2e-4 : 0.06), String(error));
      for (const [scope, layers] of Object.entries(fixture[name].expected.subwords.maps)) {
        for (const [layer, map] of layers.entries()) {
          near(await item.map(scope, layer), map.flat(), error * 1.001 + 1e-6, scope);
        }
      }
    });
  }
}

test("ranks of codes are the ranks of the decoded values", async () => {
  for (const name of ["whole", "causal"] as const) {
    const [item] = await open(new Base64Source(fixture[name].payloads["16"]));
    for (const scope of Object.keys(item.header.maps)) {
      for (const layer of item.header.layers.keys()) {
        const codes = await item.codes(scope, layer);
        const values = allowedValues(await item.map(scope, layer), item.mask(layer));
        assert.deepEqual(ranksOfCodes(codes ?? new Uint16Array()), centredRanks(values));
      }
    }
  }
  assert.equal(ranksOfCodes(Uint16Array.from([1, 65535])), null);
});

test("base64 and bytes hold the same; items of two payloads can be packed into one", async () => {
  const texts = [fixture.whole.payloads["16"], fixture.causal.payloads["32"]];
  const sources = texts.map((text) => new BytesSource(Uint8Array.from(Buffer.from(text, "base64"))));
  assert.equal(sources[0].base64(), texts[0]);
  const items = (await Promise.all(sources.map(open))).flat();
  const again = await open(new Base64Source(new BytesSource(packed(items)).base64()));
  assert.equal(again.length, 2);
  for (const [k, item] of items.entries()) {
    assert.deepEqual(again[k].header.tokens, item.header.tokens);
    for (const scope of item.header.scopes) {
      for (const layer of item.header.layers.keys()) {
        assert.deepEqual(await again[k].map(scope, layer), await item.map(scope, layer));
        assert.deepEqual(again[k].mask(layer), item.mask(layer));
      }
    }
  }
});

test("what is no payload is refused", async () => {
  await assert.rejects(open(new BytesSource(new Uint8Array(40))), /not a payload/);
});

const kept: [keyof typeof fixture.pair.expected, boolean, boolean, Sources][] = [
  ["subwords", true, false, "both"],
  ["words", true, true, "both"],
  ["words_without_special", false, true, "both"],
  ["encoder_columns", true, false, "encoder"],
  ["decoder_columns", false, true, "decoder"],
];

for (const [level, special, words, sources] of kept) {
  test(`maps of two sequences, ${level}`, async () => {
    const [item] = await open(new Base64Source(fixture.pair.payload));
    const shown = new Shown(item, special, words, sources);
    const expected = fixture.pair.expected[level];
    assert.deepEqual(shown.rows.labels, expected.tokens);
    assert.deepEqual(shown.columns.labels, expected.source_tokens);
    assert.deepEqual(shown.columns.sequences, expected.sequences);
    assert.deepEqual([...shown.same], expected.same.flat());
    for (const [scope, layers] of Object.entries(expected.maps)) {
      for (const [layer, map] of layers.entries()) near(await shown.map(scope, layer), map.flat(), 1e-6, `${scope} ${layer}`);
    }
    for (const [layer, allowed] of expected.allowed.entries()) {
      assert.deepEqual([...(shown.mask(layer) ?? [])], allowed.flat().map(Number));
    }
    for (const [pair, rhos] of Object.entries(expected.similarity)) {
      const [a, b] = pair.split("|");
      for (const [layer, rho] of (rhos as (number | null)[]).entries()) {
        const found = await shown.rho(layer, a, b);
        // Where neither has anything in the columns that are shown, nothing is like anything.
        assert.ok(rho === null ? Number.isNaN(found) : Math.abs(found - rho) < 1e-8, `${pair} ${layer}: ${found}, ${rho}`);
      }
    }
  });
}

test("pairs of a scope are those of the sequences that it has", async () => {
  const [item] = await open(new Base64Source(fixture.pair.payload));
  const shown = new Shown(item, true, false);
  for (const [scopes, layers] of Object.entries(fixture.pair.pairs)) {
    for (const [layer, pairs] of layers.entries()) {
      assert.deepEqual([...(shown.mask(layer, ...scopes.split("|")) ?? [])], pairs.flat().map(Number), scopes);
    }
  }
  assert.deepEqual(shown.groups, [{ name: "encoder", from: 0, to: 5 }, { name: "decoder", from: 5, to: 9 }]);
  assert.deepEqual(shown.columns.positions, [0, 1, 2, 3, 4, 0, 1, 2, 3]);
  assert.equal(groupAt(shown.groups, 5)?.name, "decoder");
});

test("an encoder’s maps stand beside its decoder’s, and stay there when payloads are joined", async () => {
  const [item] = await open(new Base64Source(fixture.pair.payload));
  const [again] = await open(new BytesSource(packed([item])));
  for (const each of [item, again]) {
    const encoder = each.encoder as Item;
    assert.deepEqual([each.header.stack, encoder.header.stack, each.height, each.width, encoder.width], ["decoder", "encoder", 4, 9, 5]);
    near(await encoder.map("ATTN-N", 1), fixture.pair.encoder[1].flat(), 1e-6, "encoder");
    near(await each.map("CROSS-W", 0), fixture.pair.expected.subwords.maps["CROSS-W"][0].flat(), 1e-6, "decoder");
    assert.deepEqual([...each.same], fixture.pair.expected.subwords.same.flat());
  }
});

test("a picture and the experts come through the payload, and through one that is packed anew", async () => {
  const { extras } = fixture;
  const [first] = await open(new Base64Source(extras.payload));
  const [again] = await open(new BytesSource(packed([first])));
  for (const item of [first, again]) {
    const { width, height, pixels } = (await item.picture()) as Picture;
    assert.deepEqual([width, height, [...pixels]], [4, 3, extras.pixels]);
    const routing = (await item.routing()) as Routing;
    assert.deepEqual([routing.layers, routing.count, [...routing.experts]], [[5], 300, extras.experts]);
    near(routing.weights, extras.weights, 1e-6, "weights");
    near(routing.shared as Float32Array, extras.shared, 1e-6, "shared");
    const [a, b] = [0, 1].map((k) => `e${extras.experts[6 + k]} ${extras.weights[6 + k].toFixed(2)}`);
    assert.deepEqual(expertWords(routing, 0, 3, 7), [a, b, `shared ${extras.shared[3].toFixed(2)}`]);
  }
  const [plain] = await open(new Base64Source(fixture.whole.payloads["32"]));
  assert.deepEqual([await plain.picture(), await plain.routing(), patchesOf(new Shown(plain, true, false))], [null, null, null]);
});

test("a row and a column at the patches, with special tokens and without", async () => {
  const { extras } = fixture;
  const [item] = await open(new Base64Source(extras.payload));
  for (const special of [true, false]) {
    const shown = new Shown(item, special, false);
    const patches = patchesOf(shown);
    assert.ok(patches !== null);
    const start = special ? 1 : 0;
    assert.deepEqual(patches.tokens, [start, start + 1, start + 2, start + 3]);
    assert.deepEqual(patches.others, special ? [0, 5, 6] : [4]);
    const map = await shown.map("ATTN-N", 1);
    const of = { map, mask: null, width: shown.columns.size };
    near(lineOf(of, patches, start + 2, "column").values, extras.column, 1e-6, "column");
    if (special) near(lineOf(of, patches, 0, "row").values, extras.row, 1e-6, "row");
    const steps = [[0, 1], [1, 0], [1, 0], [0, -1]] as [number, number][];
    let token = start;
    assert.deepEqual(steps.map((step) => (token = beside(patches, token, step)) - start), [1, 3, 3, 2]);
    assert.equal(beside(patches, patches.others[0], [0, 1]), start);
    assert.equal(patchName(patches, shown.rows.labels, start), `patch ${shown.rows.labels[start]}`);
  }
});
