import assert from "node:assert/strict";
import { test } from "node:test";
import type { Packed, Points } from "../src/contract.ts";
import { extent, lastAtMost, numbers, refined } from "../src/data/decode.ts";

function packed(type: Packed["type"], values: Float32Array | Float64Array | Int32Array | Uint8Array): Packed {
  return {
    type,
    base64: Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString("base64"),
  };
}

test("arrays of all types are decoded with NaN and infinities", () => {
  const floats = Float32Array.of(1.5, Number.NaN, Number.POSITIVE_INFINITY, -0);
  assert.deepEqual(numbers(packed("f32", floats)), floats);
  const doubles = Float64Array.of(1e300, Number.NEGATIVE_INFINITY, 2 ** 53 - 1);
  assert.deepEqual(numbers(packed("f64", doubles)), doubles);
  assert.deepEqual(numbers(packed("i32", Int32Array.of(-1, 2 ** 31 - 1))), Int32Array.of(-1, 2 ** 31 - 1));
  assert.deepEqual(numbers(packed("u8", Uint8Array.of(0, 255))), Uint8Array.of(0, 255));
});

test("an empty array is decoded", () => {
  assert.equal(numbers({ type: "f64", base64: "" }).length, 0);
});

test("an array is decoded once", () => {
  const once = packed("u8", Uint8Array.of(1, 2));
  assert.equal(numbers(once), numbers(once));
});

test("the extent skips values that are not finite", () => {
  assert.deepEqual(extent(Float32Array.of(Number.NaN, 3, Number.POSITIVE_INFINITY, -2)), [-2, 3]);
  assert.equal(extent(Float32Array.of(Number.NaN)), null);
  assert.deepEqual(extent(Float32Array.of(0, 2, 4), 0), [2, 4]);
});

test("the last element at most a value agrees with a linear search", () => {
  const sorted = [0, 5, 5, 9, 20];
  for (let value = -1; value <= 21; value++) {
    const expected = sorted.filter((each) => each <= value).length - 1;
    assert.equal(lastAtMost(sorted, value), expected);
  }
});

test("a refined curve has the fine points, and the coarse points around them", () => {
  const points = (steps: number[]): Points => {
    const values = packed("f64", Float64Array.from(steps));
    return { step: values, mean: values, min: values, max: values, bad: values };
  };
  const steps = (whole: number[], fine: number[]): number[] => [...refined(points(whole), points(fine)).step];
  assert.deepEqual(steps([0, 10, 20, 30], [9, 10, 11, 12]), [0, 9, 10, 11, 12, 20, 30]);
  assert.deepEqual(steps([0, 10], [0, 1]), [0, 1, 10]);
  assert.deepEqual(steps([0, 10], [10, 11]), [0, 10, 11]);
  assert.deepEqual(steps([0, 10], []), [0, 10]);
  assert.deepEqual(steps([], [3]), [3]);
});
