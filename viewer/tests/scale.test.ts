// Colour scales end where Python's do, and single heads come through the payload.
import assert from "node:assert/strict";
import { test } from "node:test";

import fixture from "./fixture.json";
import { sequential } from "../src/colours";
import { Base64Source, BytesSource } from "../src/container";
import { open, packed } from "../src/payload";
import { beyond, clippedEnd, scaleEnd, type Scale } from "../src/scale";
import { Shown } from "../src/shown";

test("the clipped scale ends where Python's does", () => {
  for (const [values, end] of fixture.scales.lists as [number[], number][]) {
    const list = Float32Array.from(values);
    assert.equal(clippedEnd(list), Math.fround(end), `${values.length} values`);
    assert.equal(clippedEnd(list.slice().reverse()), Math.fround(end));
    assert.deepEqual([...list], [...Float32Array.from(values)], "the values stay as they are");
  }
  assert.equal(clippedEnd(Float32Array.from([])), 0);
  assert.equal(clippedEnd(Float32Array.from([NaN, 2, Infinity])), 2);
});

test("scales of maps end where Python's do, with i = j and without", async () => {
  for (const name of ["whole", "causal"] as const) {
    const [item] = await open(new Base64Source(fixture[name].payloads["32"]));
    const shown = new Shown(item, true, false);
    for (const { maps, scope, layer, colour, diagonal, end } of fixture.scales.ends) {
      if (maps !== name) continue;
      const found = await shown.end([scope], [layer], { norm: "none", scale: colour as Scale, diagonal });
      assert.equal(found, Math.fround(end), `${name} ${scope} ${layer} ${colour} ${diagonal}`);
    }
  }
});

test("what is beyond a scale is counted, marked and said; i = j can be left out", () => {
  const map = Float32Array.from([90, 1, 1, 1, 1, 1, 1, 1, 50]);
  const same = Uint8Array.from([1, 0, 0, 0, 1, 0, 0, 0, 0]);
  const pairs = { mask: null, same, diagonal: true };
  assert.deepEqual(beyond(map, pairs, 2), { others: 1, same: 1, largest: 90 });
  const options = { scale: "clipped", palette: "viridis", top: 4, what: "norm", dark: false } as const;
  const colours = sequential(map, pairs, options);
  assert.deepEqual([0, 1, 8].map(colours.at), [2, 0.5, 2]);
  assert.equal(colours.colour(2), "#c2410c");
  assert.equal(colours.scale, "clipped square-root scale up to 4; beyond it, red: i = j and 1 other pair, up to 90");
  const bare = sequential(map, { ...pairs, diagonal: false }, { ...options, palette: "magma" });
  assert.deepEqual([0, 1, 4, 8].map(bare.at), [-1, 0.5, -1, 2]);
  assert.equal(bare.scale, "clipped square-root scale up to 4; beyond it, blue: 1 pair, up to 50");
  assert.equal(scaleEnd(map, { ...pairs, diagonal: false }, "linear"), 50);
  const ranks = sequential(map, { ...pairs, diagonal: false }, { ...options, scale: "rank" });
  assert.deepEqual([0, 8].map(ranks.at), [-1, 1]);
});

for (const bits of ["32", "8"] as const) {
  test(`maps of single heads with ${bits} bits, and after packing`, async () => {
    const { payloads, maps, words } = fixture.heads;
    const [first] = await open(new Base64Source(payloads[bits]));
    const [again] = await open(new BytesSource(packed([first])));
    for (const item of [first, again]) {
      const error = item.header.precision.head_relative_error;
      assert.ok(bits === "32" ? error < 1e-6 : error < 0.03, String(error));
      for (const [level, expected] of [[false, maps], [true, words]] as const) {
        const shown = new Shown(item, true, level);
        assert.deepEqual([shown.heads("ATTN-N", 1), shown.heads("ATTN-W", 1), shown.heads("ATTNRES-N", 0)], [3, 0, 0]);
        for (const [scope, layers] of Object.entries(expected)) {
          for (const [layer, heads] of layers.entries()) {
            for (const [head, wanted] of heads.entries()) {
              const found = await shown.head(scope, layer, head, "none");
              const largest = Math.max(...wanted.flat());
              wanted.flat().forEach((value, k) => {
                assert.ok(Math.abs(found[k] - value) <= 1.001 * error * value + 2e-6 * largest, `${scope} ${head}: ${found[k]}, ${value}`);
              });
            }
          }
        }
      }
      await assert.rejects(item.head("ATTN-W", 1, 0), /no head 0/);
    }
  });
}
