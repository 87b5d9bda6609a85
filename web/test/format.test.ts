import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, count, counted, duration, number, percent, shape, steps } from "../src/data/format.ts";

test("numbers have four significant digits", () => {
  assert.equal(number(0.0123456), "0.01235");
  assert.equal(number(12345), "12,345");
  assert.equal(number(1.5e-7), "1.5e−7");
  assert.equal(number(-1e9), "−1e9");
  assert.equal(number(0), "0");
});

test("numbers that are not finite have names", () => {
  assert.equal(number(Number.NaN), "NaN");
  assert.equal(number(Number.POSITIVE_INFINITY), "∞");
  assert.equal(number(Number.NEGATIVE_INFINITY), "−∞");
  assert.equal(number(null), "NaN");
});

test("units are readable", () => {
  const plain = (text: string): string => text.replaceAll("\u202f", " ");
  assert.equal(plain(bytes(1536)), "1.5 KiB");
  assert.equal(plain(bytes(12)), "12 B");
  assert.equal(plain(duration(0.0125)), "12.5 ms");
  assert.equal(plain(duration(250)), "4 min 10 s");
  assert.equal(plain(duration(11_100)), "3 h 5 min");
  assert.equal(plain(percent(0.123)), "12 %");
  assert.equal(plain(percent(0.00012)), "0.01 %");
});

test("texts of counts, shapes and steps", () => {
  assert.equal(count(1_305_251), "1,305,251");
  assert.equal(counted(1, "tensor"), "1 tensor");
  assert.equal(counted(0, "tensor"), "0 tensors");
  assert.equal(shape([]), "scalar");
  assert.equal(shape([64, 3]), "64 × 3");
  assert.equal(steps(40, 40), "step 40");
  assert.equal(steps(40, 1049), "steps 40 to 1,049");
});
