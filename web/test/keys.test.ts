import assert from "node:assert/strict";
import { test } from "node:test";
import { keyOf, matching } from "../src/keys.ts";
import { Recording } from "../src/source.ts";

test("a key has sorted parameters without empty ones and without the visible part", () => {
  const parameters = {
    statistic: "l2",
    run: "a b",
    kind: "gradient",
    worker: "",
    from: "3",
    to: "9",
    columns: "800",
    pattern: "x",
  };
  assert.equal(keyOf("layers", parameters), "layers?kind=gradient&run=a%20b&statistic=l2");
  assert.equal(keyOf("runs", {}), "runs?");
});

test("a request is answered by its exact key, else by the first key with all of its parameters", () => {
  const keys = [
    "layers?kind=weight&run=0",
    "layers?kind=gradient&run=0&statistic=l2",
    "layers?run=0",
    "tensor?name=layers&run=0",
  ];
  assert.equal(matching(keys, "layers", { run: "0" }), "layers?run=0");
  assert.equal(matching(keys.slice(0, 2), "layers", { run: "0" }), "layers?kind=weight&run=0");
  assert.equal(matching(keys, "layers", { kind: "gradient" }), "layers?kind=gradient&run=0&statistic=l2");
  assert.equal(matching(keys, "layers", { kind: "loss" }), null);
  assert.equal(matching(keys, "value", {}), null);
});

test("a parameter never matches a part of another value", () => {
  assert.equal(matching(["tensor?name=fc1.weight&run=10"], "tensor", { run: "1" }), null);
  assert.equal(matching(["tensor?name=fc1.weight&run=10"], "tensor", { name: "fc1" }), null);
});

test("a recording answers requests that it contains, and explains the others", async () => {
  const recording = new Recording({ "overview?run=0": { path: "x" } });
  assert.equal(recording.has("overview", { run: "0" }), true);
  assert.deepEqual(await recording.get("overview", { run: "0", columns: "800" }), { path: "x" });
  await assert.rejects(recording.get("tensor", { run: "0" }), /does not contain/);
  await assert.rejects(recording.post(), /cannot control/);
});
