import assert from "node:assert/strict";
import { test } from "node:test";
import { EventReader } from "../src/events.ts";

const STREAM =
  'retry: 1000\n\n: alive\n\nevent: run\ndata: {"run":"a",\ndata: "version":2}\n\nevent:run\r\ndata:x\r\n\r\n';
const EXPECTED = [
  ["run", '{"run":"a",\n"version":2}'],
  ["run", "x"],
];

function read(pieces: readonly string[]): string[][] {
  const events: string[][] = [];
  const reader = new EventReader((event, data) => events.push([event, data]));
  for (const piece of pieces) reader.push(piece);
  return events;
}

test("events are read, comments and settings are skipped", () => {
  assert.deepEqual(read([STREAM]), EXPECTED);
});

test("the pieces of a stream may end anywhere", () => {
  assert.deepEqual(read([...STREAM]), EXPECTED);
  for (let at = 0; at < STREAM.length; at++) {
    assert.deepEqual(read([STREAM.slice(0, at), STREAM.slice(at)]), EXPECTED);
  }
});

test("an event without an end is not reported", () => {
  assert.deepEqual(read(["event: run\ndata: x\n"]), []);
});
