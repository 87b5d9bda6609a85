import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { byModule, group, matcher, parts, rank } from "../src/data/names.ts";
import { format, parse } from "../src/route.ts";

const patterns = JSON.parse(readFileSync(new URL("patterns.json", import.meta.url), "utf8")) as [
  string,
  string,
  boolean | "error",
][];

test("a name has a kind, a module and a leaf", () => {
  assert.deepEqual(parts("gradient/blocks.3.attn.weight"), {
    kind: "gradient/",
    module: "blocks.3.attn.",
    leaf: "weight",
  });
  assert.deepEqual(parts("loss"), { kind: "", module: "", leaf: "loss" });
  assert.equal(group("gradient/blocks.3.attn.weight", 2), "blocks.3");
});

test("tensors of a module come together, in the order of the modules", () => {
  const names = ["a.bias", "b.bias", "loss", "a.weight", "b.weight", "lr"];
  assert.deepEqual(
    byModule(names).map((index) => names[index]),
    ["a.bias", "a.weight", "b.bias", "b.weight", "loss", "lr"],
  );
});

test("a pattern has the meaning that it has for the server, or it is an error", () => {
  for (const [pattern, name, expected] of patterns) {
    const { error, matches } = matcher(pattern);
    assert.equal(error === "" ? matches(name) : "error", expected, pattern);
    if (expected === "error") assert.equal(matches(pattern), false);
  }
  assert.equal(matcher("").matches("x"), true);
});

test("a search prefers matches at the starts of components", () => {
  assert.ok(rank("fc1", "net.fc1.weight") > rank("fc1", "net.xfc1.weight"));
  assert.ok(rank("12 w", "blocks.12.weight") > 0);
  assert.equal(rank("fc9", "net.fc1.weight"), -1);
});

test("an address is read as it was written, with hostile names", () => {
  for (const name of ["a&b=c", "<img src=x onerror=alert(1)>", "ünï/код %41 + ?#"]) {
    const route = { page: "tensor", parameters: { run: "r/1", name } } as const;
    assert.deepEqual(parse(format(route)), route);
  }
});

test("an unknown page is the overview", () => {
  assert.equal(parse("#/nothing").page, "overview");
  assert.equal(parse("").page, "overview");
});
