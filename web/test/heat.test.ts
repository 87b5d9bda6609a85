import assert from "node:assert/strict";
import { test } from "node:test";
import { frames } from "../src/charts/heat_frames.ts";
import { groupLevel, groups, labels } from "../src/charts/heat_labels.ts";
import { paint, patternOf, patternPixel, pixelsOf } from "../src/charts/heat_paint.ts";
import { sheetsOf } from "../src/charts/heat_sheets.tsx";
import { Tile } from "../src/charts/heat_tile.ts";
import type { Layers, Outline, Packed } from "../src/contract.ts";
import { scale } from "../src/data/colors.ts";
import { inside, panned, zoomed } from "../src/data/range.ts";

function pack(type: Packed["type"], values: Float32Array | Float64Array | Uint8Array): Packed {
  return {
    type,
    base64: Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString("base64"),
  };
}

/** A tile whose cell (row, column) has the value 10 * row + column, and these flags. */
function tile(
  firsts: readonly number[],
  lasts: readonly number[],
  rows: number,
  flags?: readonly number[],
): Tile {
  const cells = Array.from(
    { length: rows * firsts.length },
    (_, at) => 10 * Math.floor(at / firsts.length) + (at % firsts.length),
  );
  const values = pack("f32", Float32Array.from(cells));
  return new Tile({
    rows: new Array(rows).fill({}),
    first_steps: pack("f64", Float64Array.from(firsts)),
    last_steps: pack("f64", Float64Array.from(lasts)),
    mean: values,
    min: values,
    max: values,
    flags: pack("u8", Uint8Array.from(flags ?? cells.map(() => 1))),
  } as unknown as Layers);
}

test("a step is in the column that was saved at or before it", () => {
  const found = tile([0, 10, 20], [5, 15, 25], 1);
  assert.deepEqual(
    [0, 5, 9, 10, 29].map((step) => found.columnAt(step)),
    [0, 0, 0, 1, 2],
  );
  assert.equal(found.columnAt(-1), -1);
  assert.equal(found.columnAt(1000), -1);
});

test("a gap of saved steps stays empty", () => {
  const found = tile([0, 10, 20, 500, 510], [0, 10, 20, 500, 510], 1);
  assert.equal(found.columnAt(25), 2);
  assert.equal(found.columnAt(300), -1);
  assert.equal(found.columnAt(505), 3);
});

test("no column is skipped if there are more columns than pixels", () => {
  const firsts = Array.from({ length: 1000 }, (_, column) => column);
  const found = tile(firsts, firsts, 1);
  const { first, last } = found.pixels({ from: 0, to: 1000 }, 137);
  const seen = new Set<number>();
  for (let x = 0; x < 137; x++) for (let column = first[x]!; column <= last[x]!; column++) seen.add(column);
  assert.equal(seen.size, 1000);
});

test("every pixel shows the column of its step if there are more pixels than columns", () => {
  const found = tile([0, 10, 20, 30], [0, 10, 20, 30], 1);
  const { first, last } = found.pixels({ from: 0, to: 40 }, 400);
  for (let x = 0; x < 400; x++) {
    assert.equal(first[x], Math.floor(x / 100), `pixel ${x}`);
    assert.equal(last[x], first[x]);
  }
});

test("NaN wins over infinite, a value over lost and absent", () => {
  assert.equal(patternOf(1), 0);
  assert.equal(patternOf(1 | 2 | 4), 1);
  assert.equal(patternOf(1 | 4), 2);
  assert.equal(patternOf(1 | 16), 0);
  assert.equal(patternOf(16 | 8), 3);
  assert.equal(patternOf(8), 4);
  assert.equal(patternOf(0), 5);
});

test("patterns differ from each other and from values without colour", () => {
  const pixels = pixelsOf("light", scale("linear", [0, 1]));
  const grey = (value: number): number =>
    (value & 255) * 0.3 + ((value >> 8) & 255) * 0.59 + ((value >> 16) & 255) * 0.11;
  const pictures = [1, 2, 3, 4].map((pattern) =>
    Array.from(
      { length: 144 },
      (_, at) => grey(patternPixel(pattern, at % 12, Math.floor(at / 12), pixels)) > 128,
    ),
  );
  const texts = pictures.map((picture) => picture.join());
  assert.equal(new Set(texts).size, 4);
  const contrasts = [1, 2, 3, 4].map((pattern) => {
    const values = Array.from({ length: 144 }, (_, at) =>
      grey(patternPixel(pattern, at % 12, Math.floor(at / 12), pixels)),
    );
    return Math.max(...values) - Math.min(...values);
  });
  for (const contrast of contrasts) assert.ok(contrast > 40, String(contrasts));
});

test("a single bad cell among 1,000 columns is painted, in 100 pixels", () => {
  const firsts = Array.from({ length: 1000 }, (_, column) => column);
  const flags = firsts.map((column) => (column === 617 ? 1 | 2 : 1));
  const found = tile(firsts, firsts, 1, flags);
  const image = new Uint32Array(100 * 8);
  const values = scale("linear", [0, 1000]);
  const pixels = pixelsOf("dark", values);
  const columns = found.pixels({ from: 0, to: 1000 }, 100);
  paint(
    { image, width: 100, height: 8, rowHeight: 8, scrollTop: 0 },
    [{ tile: found, columns }],
    [0],
    values,
    pixels,
  );
  const bad = new Set(pixels.nan);
  const painted = Array.from({ length: 100 }, (_, x) => x).filter((x) => bad.has(image[3 * 100 + x]!));
  assert.deepEqual(painted, [61]);
});

test("a single bad row among 1,000 rows is painted, in 100 pixels", () => {
  const flags = Array.from({ length: 1000 }, (_, row) => (row === 617 ? 1 | 2 : 1));
  const found = tile([0], [0], 1000, flags);
  const image = new Uint32Array(4 * 100);
  const values = scale("linear", [0, 10000]);
  const pixels = pixelsOf("light", values);
  paint(
    { image, width: 4, height: 100, rowHeight: 0.1, scrollTop: 0 },
    [{ tile: found, columns: found.pixels({ from: 0, to: 1 }, 4) }],
    flags.map((_, row) => row),
    values,
    pixels,
  );
  const bad = new Set(pixels.nan);
  const painted = Array.from({ length: 100 }, (_, y) => y).filter((y) => bad.has(image[4 * y]!));
  assert.equal(painted.length, 1);
  assert.ok(Math.abs(painted[0]! - 61) <= 1);
});

test("rows are painted in the order of the picture, and the rest is empty", () => {
  const found = tile([0], [0], 3);
  const values = scale("linear", [0, 20]);
  const pixels = pixelsOf("light", values);
  const image = new Uint32Array(4 * 12);
  const columns = found.pixels({ from: 0, to: 1 }, 4);
  paint(
    { image, width: 4, height: 12, rowHeight: 4, scrollTop: 0 },
    [{ tile: found, columns }],
    [2, 0],
    values,
    pixels,
  );
  assert.equal(image[0], pixels.values[255]);
  assert.equal(image[4 * 4], pixels.values[0]);
  assert.equal(image[4 * 9], pixels.surface);
});

test("findings of one rule in neighbouring lines have one frame", () => {
  const outline = (row: number, first: number, rule = "R"): Outline =>
    ({ row, first_column: first, last_column: 9, finding: { rule } }) as unknown as Outline;
  const lines = new Map([0, 1, 2, 3, 4].map((row) => [row, row]));
  assert.deepEqual(
    frames([outline(0, 0), outline(1, 0), outline(3, 0), outline(4, 2), outline(7, 0)], lines),
    [
      { top: 0, bottom: 1, first: 0, last: 9 },
      { top: 3, bottom: 3, first: 0, last: 9 },
      { top: 4, bottom: 4, first: 2, last: 9 },
    ],
  );
});

test("low rows have labels of modules, high rows have names", () => {
  const names = Array.from(
    { length: 300 },
    (_, index) => `gradient/blocks.${Math.floor(index / 6)}.m${index % 6}.weight`,
  );
  const low = labels(names, 2, 0, 600);
  assert.ok(low.length > 10 && low.every((label) => label.text === "" || label.text.startsWith("blocks.")));
  const shown = low.filter((label) => label.text !== "");
  for (let index = 1; index < shown.length; index++) assert.ok(shown[index]!.y - shown[index - 1]!.y >= 12);
  const high = labels(names, 16, 160, 320);
  assert.equal(high[0]?.first, 10);
  assert.equal(high[0]?.text, "weight");
  assert.equal(groupLevel(names, 2), 2);
  assert.equal(groups(names, 2).length, 50);
});

test("zoom keeps the step under the pointer, and stays inside", () => {
  const whole = { from: 0, to: 1000 };
  const closer = zoomed(whole, 0.5, 250, whole);
  assert.deepEqual(closer, { from: 125, to: 625 });
  assert.deepEqual(zoomed(closer, 100, 300, whole), whole);
  assert.deepEqual(panned({ from: 0, to: 100 }, -50, whole), { from: 0, to: 100 });
  assert.deepEqual(panned({ from: 0, to: 100 }, 5000, whole), { from: 900, to: 1000 });
  assert.deepEqual(inside({ from: -50, to: 2000 }, whole), whole);
});

test("the sheets of a printed heat map have all rows, each once", () => {
  for (const rows of [1, 78, 79, 500, 5000]) {
    const sheets = sheetsOf(rows);
    assert.equal(sheets[0]![0], 0);
    assert.equal(sheets[sheets.length - 1]![1], rows);
    for (let at = 1; at < sheets.length; at++) assert.equal(sheets[at]![0], sheets[at - 1]![1]);
    assert.ok(sheets.length <= 12);
  }
  assert.deepEqual(sheetsOf(0), []);
});
