/** Verdict of each rule, with its evidence, or the reason why it cannot be evaluated. */
import { useEffect, useMemo, useState } from "preact/hooks";
import type { Rules as Answer, Verdict } from "../contract.ts";
import { count, counted } from "../data/format.ts";
import { matcher } from "../data/names.ts";
import { Choice, Code, Empty, PatternField, Waiting } from "../parts/controls.tsx";
import { FindingCard } from "../parts/findings.tsx";
import { setParameters, useAnswer, useApp } from "../state.ts";

const ORDER: readonly Verdict["status"][] = [
  "issue",
  "error",
  "in progress",
  "no issue",
  "not evaluable",
  "does not apply",
];

const JUDGED: Readonly<Record<Answer["judged"], string>> = {
  now: "",
  running: "The rules are being evaluated. Verdicts appear as they are ready.",
  stale: "The run has changed since these verdicts. They are evaluated again.",
};

export function Rules() {
  const app = useApp();
  const { data, error } = useAnswer<Answer>("rules", { run: app.run });
  const [pattern, setPattern] = useState("");
  const status = app.route.parameters.status ?? "";
  const filter = matcher(pattern);
  const sorted = useMemo(
    () => [...(data?.verdicts ?? [])].sort((a, b) => ORDER.indexOf(a.status) - ORDER.indexOf(b.status)),
    [data],
  );
  if (data === null) return <Waiting error={error} />;
  const there = ORDER.filter((each) => data.verdicts.some((verdict) => verdict.status === each));
  const shown = sorted.filter(
    (each) =>
      (status === "" || each.status === status) && (filter.matches(each.rule) || filter.matches(each.code)),
  );
  const options = [
    { value: "", label: `all ${count(data.verdicts.length)}` },
    ...there.map((each) => ({
      value: each,
      label: `${each} (${count(data.verdicts.filter((verdict) => verdict.status === each).length)})`,
    })),
  ];
  return (
    <div class="page rules">
      <header class="headline">
        <h1>Rules</h1>
        <p class="muted" role="status">
          {JUDGED[data.judged]}
        </p>
      </header>
      <div class="toolbar">
        <Choice
          label="Verdict"
          value={status}
          options={options}
          onChange={(next) => setParameters(app, { status: next })}
        />
        <PatternField value={pattern} error={filter.error} onInput={setPattern} />
      </div>
      {shown.length === 0 && (
        <Empty>{data.verdicts.length === 0 ? "No rule has judged this run yet." : "No rule matches."}</Empty>
      )}
      <div class="verdicts">
        {shown.map((each) => (
          <VerdictRow
            key={each.rule}
            verdict={each}
            open={
              each.rule === app.route.parameters.rule || each.status === "issue" || each.status === "error"
            }
          />
        ))}
      </div>
    </div>
  );
}

const MOST_SHOWN = 6;

/** The findings of a rule. An action that is the same for all of them is shown once. */
function Evidence({ verdict }: { readonly verdict: Verdict }) {
  const [all, setAll] = useState(false);
  const { findings } = verdict;
  const actions = new Set(findings.map((each) => each.do));
  const shown = all ? findings : findings.slice(0, MOST_SHOWN);
  const rest = verdict.finding_count - findings.length;
  return (
    <>
      {actions.size === 1 && findings[0]!.do !== "" && (
        <p class="do">
          <b>Do: </b>
          {findings[0]!.do}
        </p>
      )}
      {shown.map((each, index) => (
        <FindingCard key={index} finding={each} rule={false} action={actions.size > 1} />
      ))}
      {findings.length > shown.length && (
        <button type="button" class="quiet more-findings" onClick={() => setAll(true)}>
          Show {counted(findings.length - shown.length, "more finding")}
        </button>
      )}
      {rest > 0 && all && (
        <p class="muted">
          and {counted(rest, "more finding")}, which {rest === 1 ? "is" : "are"} not listed
        </p>
      )}
    </>
  );
}

function VerdictRow({ verdict, open }: { readonly verdict: Verdict; readonly open: boolean }) {
  const app = useApp();
  const aim = app.route.parameters.rule === verdict.rule;
  useEffect(() => {
    if (aim) document.getElementById(`rule-${verdict.rule}`)?.scrollIntoView({ block: "start" });
  }, [aim, verdict.rule]);
  return (
    <details class="verdict" open={open} id={`rule-${verdict.rule}`}>
      <summary>
        <span class={`status ${verdict.status.replaceAll(" ", "-")}`}>{verdict.status}</span>
        <b>{verdict.rule}</b>
        <span class="code-name muted">{verdict.code}</span>
        <span class="verdict-title">{verdict.title}</span>
        {verdict.finding_count > 0 && (
          <b class="finding-count">{counted(verdict.finding_count, "finding")}</b>
        )}
      </summary>
      <div class="verdict-body">
        <p>{verdict.text}</p>
        {verdict.judged > 0 && <p class="muted">Judged: {counted(verdict.judged, "step")}</p>}
        {verdict.missing.length > 0 && (
          <div>
            <p>
              <b>Missing data</b>
            </p>
            <ul>
              {verdict.missing.map((each) => (
                <li key={each}>{each}</li>
              ))}
            </ul>
          </div>
        )}
        {verdict.fix !== "" && <Code text={verdict.fix} />}
        <Evidence verdict={verdict} />
      </div>
    </details>
  );
}
