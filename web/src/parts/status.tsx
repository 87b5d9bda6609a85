/** Badges of states. */
import type { RunLine } from "../contract.ts";

const RUNS: Readonly<Record<RunLine["status"], string>> = {
  running: "running",
  ended: "ended",
  died: "died",
  unreadable: "cannot be read",
  reading: "reading …",
};

export function StatusBadge({ status }: { readonly status: RunLine["status"] }) {
  return <span class={`badge ${status}`}>{RUNS[status]}</span>;
}
