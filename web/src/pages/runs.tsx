/** The runs of a folder. */
import { useState } from "preact/hooks";
import type { RunLine } from "../contract.ts";
import { count, counted, time } from "../data/format.ts";
import { matcher } from "../data/names.ts";
import { Empty, PatternField } from "../parts/controls.tsx";
import { StatusBadge } from "../parts/status.tsx";
import { format } from "../route.ts";
import { useApp } from "../state.ts";

export function RunList() {
  const { runs } = useApp();
  const [pattern, setPattern] = useState("");
  const [marked, setMarked] = useState<readonly string[]>([]);
  const { matches, error } = matcher(pattern);
  const shown = runs.runs.filter((each) => matches(each.name));
  const toggle = (id: string): void =>
    setMarked(marked.includes(id) ? marked.filter((each) => each !== id) : [...marked, id]);
  return (
    <div class="page">
      <header class="headline">
        <h1>{counted(runs.runs.length, "run")}</h1>
        <p class="path muted">{runs.folder}</p>
      </header>
      <div class="toolbar">
        <PatternField value={pattern} error={error} onInput={setPattern} />
        <span class="spacer" />
        {marked.length >= 2 && (
          <a
            class="button"
            href={format({ page: "compare", parameters: { run: marked[0]!, runs: marked.join(",") } })}
          >
            Compare {marked.length} runs
          </a>
        )}
      </div>
      {shown.length === 0 ? (
        <Empty>
          {runs.runs.length === 0
            ? "There is no run in this folder. A hook writes one when a training starts."
            : "No run matches the filter."}
        </Empty>
      ) : (
        <div class="table-scroll">
          <table class="run-table">
            <thead>
              <tr>
                <th>
                  <span class="hidden">Compare</span>
                </th>
                <th>Run</th>
                <th>State</th>
                <th>Started</th>
                <th>Saved steps</th>
                <th class="num">Workers</th>
                <th class="num">Rows</th>
                <th class="num">Findings</th>
              </tr>
            </thead>
            <tbody>
              {shown.map((each) => (
                <Row
                  key={each.id}
                  line={each}
                  marked={marked.includes(each.id)}
                  onMark={() => toggle(each.id)}
                />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </div>
  );
}

function Row({
  line,
  marked,
  onMark,
}: {
  readonly line: RunLine;
  readonly marked: boolean;
  readonly onMark: () => void;
}) {
  if (line.status === "unreadable") {
    return (
      <tr>
        <td />
        <td>{line.name}</td>
        <td>
          <StatusBadge status={line.status} />
        </td>
        <td colSpan={5} class="bad">
          {line.error}
        </td>
      </tr>
    );
  }
  if (line.status === "reading") {
    return (
      <tr>
        <td />
        <td>
          <a href={format({ page: "overview", parameters: { run: line.id } })}>{line.name}</a>
        </td>
        <td colSpan={6}>
          <StatusBadge status={line.status} />
        </td>
      </tr>
    );
  }
  return (
    <tr>
      <td>
        <input type="checkbox" aria-label={`Compare ${line.name}`} checked={marked} onChange={onMark} />
      </td>
      <td>
        <a href={format({ page: "overview", parameters: { run: line.id } })}>{line.name}</a>
      </td>
      <td>
        <StatusBadge status={line.status} />
      </td>
      <td class="nowrap">{time(line.started_ns)}</td>
      <td>
        {Object.entries(line.steps)
          .map(([mode, number]) => `${mode} ${count(number)}`)
          .join(" · ")}
      </td>
      <td class="num">{count(line.workers)}</td>
      <td class="num">{count(line.rows)}</td>
      <td class="num">{line.findings > 0 ? <b class="finding-count">{count(line.findings)}</b> : "0"}</td>
    </tr>
  );
}
