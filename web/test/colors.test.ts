import assert from "node:assert/strict";
import { test } from "node:test";
import { contrast, DIVERGING, luminance, type Rgb, SEQUENTIAL, scale } from "../src/data/colors.ts";

/** A colour as it appears with deuteranopia or protanopia (Viénot, Brettel and Mollon 1999), in linear RGB. */
function dichromat([red, green, blue]: Rgb, kind: "protan" | "deutan"): [number, number, number] {
  const linear = [red, green, blue].map((each) => (each / 255) ** 2.2) as [number, number, number];
  const share = kind === "protan" ? 0.11238 : 0.29275;
  const yellow = share * linear[0] + (1 - share) * linear[1];
  return [yellow, yellow, linear[2]];
}

test("the lightness of the sequential scale rises at every step", () => {
  for (let index = 4; index < SEQUENTIAL.length; index += 4) {
    assert.ok(luminance(SEQUENTIAL[index]!) > luminance(SEQUENTIAL[index - 4]!), `at ${index}`);
  }
  assert.ok(contrast(SEQUENTIAL[0]!, SEQUENTIAL[255]!) > 12);
});

test("the sequential scale stays in order with red-green colour blindness", () => {
  for (const kind of ["protan", "deutan"] as const) {
    for (let index = 16; index < SEQUENTIAL.length; index += 16) {
      const before = dichromat(SEQUENTIAL[index - 16]!, kind);
      const after = dichromat(SEQUENTIAL[index]!, kind);
      const distance = Math.hypot(...after.map((each, at) => each ** (1 / 2.2) - before[at]! ** (1 / 2.2)));
      assert.ok(distance > 0.03, `${kind} at ${index}: ${distance}`);
    }
  }
});

test("the diverging scale is lightest at 0, and its ends differ", () => {
  const lights = DIVERGING.map(luminance);
  const lightest = lights.indexOf(Math.max(...lights));
  assert.ok(Math.abs(lightest - 127.5) < 6, String(lightest));
  const [low, high] = [DIVERGING[0]!, DIVERGING[255]!];
  assert.ok(low[2] > low[0] && high[0] > high[2]);
});

test("a logarithmic scale is the inverse of itself", () => {
  const log = scale("log", [1e-8, 1e2]);
  for (const value of [1e-8, 3e-5, 1, 99]) {
    assert.ok(Math.abs(log.value(log.at(value)) / value - 1) < 1e-9);
  }
  assert.equal(log.at(0), 0);
  assert.equal(log.at(1e9), 1);
});

test("scales have a range even if all values are equal", () => {
  for (const kind of ["log", "linear", "share", "diverging"] as const) {
    for (const value of [0, 1, 5]) {
      const { at } = scale(kind, [value, value]);
      assert.ok(Number.isFinite(at(value)), `${kind} ${value}`);
    }
  }
});

test("a diverging scale has 0 in its middle", () => {
  const { at } = scale("diverging", [-1, 3]);
  assert.equal(at(0), 0.5);
  assert.equal(at(3), 1);
});
