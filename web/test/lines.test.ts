import assert from "node:assert/strict";
import { test } from "node:test";
import { aligned, type Series, suitsLog, union } from "../src/charts/lines_data.ts";

const series = (step: number[], value: number[]): Series => ({
  label: "x",
  color: "#000000",
  step: Float64Array.from(step),
  value: Float32Array.from(value),
});

test("series with different steps share one axis, and gaps stay gaps", () => {
  const { steps, columns } = aligned([series([0, 2], [1, 3]), series([1, 2], [Number.NaN, 5])], false);
  assert.deepEqual(steps, [0, 1, 2]);
  assert.equal(columns.length, 6);
  assert.deepEqual([columns[0]?.[0], columns[0]?.[1], columns[0]?.[2]], [1, undefined, 3]);
  assert.deepEqual([columns[3]?.[0], columns[3]?.[1], columns[3]?.[2]], [undefined, null, 5]);
});

test("a logarithmic axis has no place for 0", () => {
  assert.equal(aligned([series([0], [0])], true).columns[0]?.[0], null);
  assert.equal(aligned([series([0], [0])], false).columns[0]?.[0], 0);
});

test("a logarithmic axis is chosen for values of many magnitudes only", () => {
  assert.equal(suitsLog([series([0, 1], [1, 2])]), false);
  assert.equal(suitsLog([series([0, 1], [1e-5, 2])]), true);
  assert.equal(suitsLog([series([0, 1], [0, 1e5])]), false);
  assert.equal(suitsLog([series([0, 1], [Number.NaN, Number.NaN])]), false);
});

test("the union of steps is sorted and without repetitions", () => {
  assert.deepEqual(union([Float64Array.of(0, 10), Float64Array.of(5, 10)]), [0, 5, 10]);
});
