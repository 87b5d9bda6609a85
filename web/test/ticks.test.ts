import assert from "node:assert/strict";
import { test } from "node:test";
import { linearTicks, linearTickText, logTicks, logTickText } from "../src/data/ticks.ts";

test("ticks of a linear axis are round and inside of the axis", () => {
  assert.deepEqual(linearTicks(0, 1, 4), [0, 0.5, 1]);
  assert.deepEqual(linearTicks(0, 100, 5), [0, 20, 40, 60, 80, 100]);
  assert.deepEqual(linearTicks(-0.3, 0.3, 3), [-0.2, 0, 0.2]);
});

test("ticks of whole numbers are whole", () => {
  assert.deepEqual(linearTicks(0, 3, 10, true), [0, 1, 2, 3]);
});

test("a linear axis never has many more ticks than requested", () => {
  for (const high of [1e-12, 0.7, 3, 47, 1e9, 1e300]) {
    const ticks = linearTicks(0, high, 5);
    assert.ok(ticks.length >= 2 && ticks.length <= 7, `${high}: ${ticks.length}`);
  }
});

test("an empty axis has at most one tick", () => {
  assert.deepEqual(linearTicks(5, 5, 4), [5]);
  assert.deepEqual(linearTicks(Number.NaN, Number.NaN, 4), []);
  assert.deepEqual(logTicks(0, 1, 4), []);
});

test("ticks of a logarithmic axis are powers of ten, thinned out if there are many", () => {
  assert.deepEqual(logTicks(1e-4, 1, 6).map(logTickText), ["10⁻⁴", "0.001", "0.01", "0.1", "1"]);
  const many = logTicks(1e-30, 1e30, 6);
  assert.ok(many.length <= 8 && many.every((tick) => Number.isInteger(Math.round(Math.log10(tick)))));
});

test("a short logarithmic axis has 2 and 5 between the powers", () => {
  assert.deepEqual(logTicks(1, 30, 6), [1, 2, 5, 10, 20]);
});

test("texts of ticks are short", () => {
  assert.equal(linearTickText(1500), "1,500");
  assert.equal(linearTickText(20_000), "20k");
  assert.equal(linearTickText(-0.25), "−0.25");
  assert.equal(linearTickText(3e-6), "3e−6");
  assert.equal(linearTickText(1e-17, 0.2), "0");
  assert.equal(logTickText(2e5), "2×10⁵");
});
