import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

const SOURCES = join(import.meta.dirname, "..", "src");
// Ways in which a text of a run would become code or markup, and ways to load something from elsewhere.
const FORBIDDEN =
  /innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerously|\beval\(|new Function|https?:\/\//;

test("no source turns texts into markup or code, or loads anything from elsewhere", () => {
  for (const file of readdirSync(SOURCES, { recursive: true, encoding: "utf8" })) {
    if (!/\.(tsx?|css|html)$/.test(file)) continue;
    const found = FORBIDDEN.exec(readFileSync(join(SOURCES, file), "utf8"));
    assert.equal(found, null, `${file} contains ${found?.[0]}`);
  }
});

test("the page has no inline script and no inline style, as its policy requires", () => {
  const page = readFileSync(join(SOURCES, "index.html"), "utf8");
  assert.doesNotMatch(page, /<style|style=|<script>|\son\w+=/);
});
