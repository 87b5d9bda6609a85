/** Overview of a run: missing data first, then causes, findings, losses, learning rate, cost, attempts. */
import { useMemo, useState } from "preact/hooks";
import { Lines } from "../charts/lines.tsx";
import type { Series } from "../charts/lines_data.ts";
import type { Mark } from "../charts/lines_plot.ts";
import type {
  Overview as Answer,
  AttemptLine,
  Cost,
  Curve,
  Finding,
  Notice,
  Points,
  Rules as RulesAnswer,
  RunLine,
  VisibleCurves,
} from "../contract.ts";
import { refined } from "../data/decode.ts";
import { bytes, count, counted, curveName, duration, percent, time } from "../data/format.ts";
import type { Range } from "../data/range.ts";
import { Choice, Empty, Panel, Waiting } from "../parts/controls.tsx";
import { byRule, CauseCard, FindingCard, FindingLine, type RuleFindings } from "../parts/findings.tsx";
import { StatusBadge } from "../parts/status.tsx";
import { href, useAnswer, useApp } from "../state.ts";
import { ink, seriesColor, type Theme } from "../theme.ts";
import { useDetail } from "../visible.ts";

export function Overview() {
  const app = useApp();
  const { data, error } = useAnswer<Answer>("overview", { run: app.run });
  const groups = useMemo(() => (data === null ? [] : byRule(data.findings)), [data]);
  if (data === null) return <Waiting error={error} />;
  const last = Math.max(0, ...data.findings.map((each) => each.last.step), ...Object.values(data.run.steps));
  return (
    <div class="page overview">
      <Headline answer={data} />
      <Notices notices={data.notices} />
      <div class="columns">
        <div class="column-wide">
          <Curves
            title="Losses and metrics"
            group="losses"
            curves={data.losses}
            findings={data.findings}
            height={250}
            empty="The run has no losses and no metrics. Register the loss, or record it with save_scalar()."
          />
          <Panel title="Findings" note={<FindingNote answer={data} />}>
            {groups.length === 0 ? <NoFindings answer={data} /> : <FindingLine groups={groups} last={last} />}
            <FindingList groups={groups} />
          </Panel>
          {data.learning_rates.length > 0 && (
            <Curves
              title="Learning rate"
              group="learning_rates"
              scale="linear"
              curves={data.learning_rates}
              findings={[]}
              height={120}
              empty=""
            />
          )}
        </div>
        <div class="column-narrow">
          {data.causes.length > 0 && (
            <Panel title={data.causes.length === 1 ? "Probable cause" : "Probable causes"}>
              {data.causes.map((cause) => (
                <CauseCard cause={cause} key={`${cause.cause}${cause.since}`} />
              ))}
            </Panel>
          )}
          <Verdicts verdicts={data.verdicts} />
          <CostPanel cost={data.cost} run={data.run} />
          <Attempts attempts={data.attempts} />
        </div>
      </div>
    </div>
  );
}

function Headline({ answer }: { readonly answer: Answer }) {
  const { run, attempts } = answer;
  const first = attempts[0];
  const facts = [
    ...Object.entries(run.steps).map(([mode, number]) => `${counted(number, "saved step")} of ${mode}`),
    counted(run.workers, "worker"),
    counted(run.rows, "row"),
    first === undefined ? "" : first.framework,
    run.started_ns > 0 ? `started ${time(run.started_ns)}` : "",
  ];
  return (
    <header class="headline">
      <h1>{run.name}</h1>
      <StatusBadge status={run.status} />
      <p class="muted">{facts.filter((each) => each !== "").join(" · ")}</p>
      <p class="path muted">{answer.path}</p>
    </header>
  );
}

const LEVELS: Readonly<Record<Notice["level"], string>> = {
  lost: "Missing data",
  warning: "Warning",
  note: "Note",
};

function Notices({ notices }: { readonly notices: readonly Notice[] }) {
  const shown = notices.filter((each) => each.level !== "note");
  const notes = notices.filter((each) => each.level === "note");
  if (notices.length === 0) return <p class="complete">All captured data is stored; there are no gaps.</p>;
  return (
    <section class="notices" aria-label="Missing data and warnings">
      {shown.map((each) => (
        <NoticeLine notice={each} key={each.text} />
      ))}
      {notes.length > 0 && (
        <details open={shown.length === 0 && notes.length <= 2}>
          <summary>{counted(notes.length, "note")} of the hook and the reader</summary>
          {notes.map((each) => (
            <NoticeLine notice={each} key={each.text} />
          ))}
        </details>
      )}
    </section>
  );
}

function NoticeLine({ notice }: { readonly notice: Notice }) {
  return (
    <p class={`notice ${notice.level}`}>
      <b>{LEVELS[notice.level]}</b> {notice.text}
    </p>
  );
}

interface CurvesProps {
  readonly title: string;
  readonly group: VisibleCurves["group"];
  readonly curves: readonly Curve[];
  readonly findings: readonly Finding[];
  readonly height: number;
  readonly empty: string;
  readonly scale?: "auto" | "linear";
}

/** Curves as lines with their range. `detail`: the visible steps, more finely. */
export function curveSeries(
  curves: readonly Curve[],
  detail: readonly Curve[],
  theme: Theme,
  global: boolean,
): Series[] {
  const modes = new Set(curves.map((each) => each.mode)).size;
  const points = (curve: Curve): Points =>
    global ? { ...curve.points, step: curve.global_step } : curve.points;
  return curves.map((curve, index) => {
    const fine = detail.find((each) => each.name === curve.name && each.mode === curve.mode);
    const { step, mean, min, max, bad } = refined(points(curve), fine && points(fine));
    const label = curveName(curve, modes);
    const band = mean.some((value, at) => value !== min[at] && !Number.isNaN(min[at]));
    const base = { label, color: seriesColor(theme, index), step, value: mean, bad };
    return band ? { ...base, low: min, high: max } : base;
  });
}

const SCALES = [
  { value: "auto", label: "auto" },
  { value: "log", label: "log" },
  { value: "linear", label: "linear" },
];

function Curves({ title, group, curves, findings, height, empty, scale: first = "auto" }: CurvesProps) {
  const { theme, run } = useApp();
  const [range, setRange] = useState<Range | null>(null);
  const [scale, setScale] = useState<string>(first);
  const global =
    new Set(curves.map((each) => each.mode)).size > 1 &&
    curves.every((each) => each.global_step !== undefined);
  const mode = global ? "" : (curves[0]?.mode ?? "");
  const detail = useDetail<VisibleCurves>("curves", curves.length === 0 ? null : { run, group, mode }, range);
  const series = useMemo(
    () => curveSeries(curves, detail.data?.curves ?? [], theme, global),
    [curves, detail.data, theme, global],
  );
  const marks = useMemo(() => findingMarks(findings, theme, global), [findings, theme, global]);
  if (curves.length === 0)
    return empty === "" ? null : (
      <Panel title={title}>
        <Empty>{empty}</Empty>
      </Panel>
    );
  return (
    <Panel title={title} note={<Choice label="Scale" value={scale} options={SCALES} onChange={setScale} />}>
      <Lines
        label={title}
        series={series}
        marks={marks}
        height={height}
        range={range}
        onRange={setRange}
        y={scale as "auto"}
        sync="overview"
        xLabel={global ? "global step" : `${curves[0]!.mode} step`}
      />
    </Panel>
  );
}

/** Findings as marks, at most one per step. */
export function findingMarks(findings: readonly Finding[], theme: Theme, global = false): Mark[] {
  const marks = new Map<number, Mark>();
  for (const each of findings) {
    const step = global ? each.at.step : each.at.mode_step;
    if (!marks.has(step)) marks.set(step, { step, color: ink(theme).finding, text: each.rule });
  }
  return [...marks.values()];
}

function FindingNote({ answer }: { readonly answer: Answer }) {
  const app = useApp();
  return (
    <>
      {counted(answer.run.findings, "finding")} · <a href={href(app, "rules")}>verdicts of all rules</a>
    </>
  );
}

function NoFindings({ answer }: { readonly answer: Answer }) {
  const app = useApp();
  const judged = Object.values(answer.verdicts).reduce((sum, each) => sum + each, 0);
  const { data } = useAnswer<RulesAnswer>("rules", judged === 0 ? { run: app.run } : null);
  if ((answer.verdicts["no issue"] ?? 0) > 0) return <Empty>No rule found an issue.</Empty>;
  if (judged > 0)
    return <Empty>No rule could judge this run. The page Rules lists the data that the rules need.</Empty>;
  if (data?.judged === "running") return <Empty>The rules are being evaluated.</Empty>;
  return <Empty>No rule has judged this run.</Empty>;
}

const MOST_CARDS = 6;

/** The first finding of each rule. */
function FindingList({ groups }: { readonly groups: readonly RuleFindings[] }) {
  const app = useApp();
  const [all, setAll] = useState(false);
  const shown = all ? groups : groups.slice(0, MOST_CARDS);
  return (
    <div class="findings">
      {shown.map((group) => (
        <div key={group.rule}>
          <FindingCard finding={group.findings[0]!} />
          {group.findings.length > 1 && (
            <a class="more" href={href(app, "rules", { rule: group.rule })}>
              and {counted(group.findings.length - 1, "more finding")} of {group.rule}
            </a>
          )}
        </div>
      ))}
      {groups.length > shown.length && (
        <button type="button" class="quiet" onClick={() => setAll(true)}>
          Show all {count(groups.length)} rules
        </button>
      )}
    </div>
  );
}

function Verdicts({ verdicts }: { readonly verdicts: Readonly<Record<string, number>> }) {
  const app = useApp();
  const entries = Object.entries(verdicts).filter(([, number]) => number > 0);
  if (entries.length === 0) return null;
  return (
    <Panel title="Rules" note={<a href={href(app, "rules")}>all</a>}>
      <ul class="verdict-counts">
        {entries.map(([status, number]) => (
          <li key={status}>
            <span class={`status ${status.replaceAll(" ", "-")}`}>{status}</span> <b>{count(number)}</b>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function CostPanel({ cost, run }: { readonly cost: Cost | null; readonly run: RunLine }) {
  if (cost === null) {
    return (
      <Panel title="Cost of capture">
        <Empty>
          {run.status === "running"
            ? "Known after the training ends."
            : "The run has no end record with the cost."}
        </Empty>
      </Panel>
    );
  }
  const share =
    cost.training_seconds === null || cost.training_seconds === 0
      ? null
      : cost.capture_seconds / cost.training_seconds;
  return (
    <Panel title="Cost of capture">
      <dl class="facts">
        <dt>Time of the training thread</dt>
        <dd>
          {duration(cost.capture_seconds)}
          {share !== null && (
            <span class="muted">
              {" "}
              · {percent(share)} of {duration(cost.training_seconds!)}
            </span>
          )}
        </dd>
        <dt>Captured</dt>
        <dd>
          {counted(cost.captured_tensors, "tensor")} · {bytes(cost.captured_bytes)}
        </dd>
        <dt>Stored</dt>
        <dd>
          {counted(cost.rows, "row")} · {bytes(cost.payload_bytes)} of values
        </dd>
      </dl>
    </Panel>
  );
}

function Attempts({ attempts }: { readonly attempts: readonly AttemptLine[] }) {
  if (attempts.length === 0) return null;
  return (
    <Panel title={attempts.length === 1 ? "Attempt" : `${attempts.length} attempts`}>
      {[...attempts].reverse().map((each) => (
        <dl class="facts attempt" key={each.attempt}>
          <dt>{attempts.length === 1 ? "Host" : `Attempt ${each.attempt}`}</dt>
          <dd>
            {[each.host, each.framework, each.world_size > 1 ? counted(each.world_size, "rank") : ""]
              .filter(Boolean)
              .join(" · ")}
          </dd>
          <dt>Started</dt>
          <dd>{time(each.started_ns)}</dd>
          <dt>Ended</dt>
          <dd>
            {each.ended_ns === null
              ? "not ended"
              : `${time(each.ended_ns)}, after ${duration((each.ended_ns - each.started_ns) / 1e9)}`}
            {each.clean === false && <span class="bad"> · not a normal end</span>}
            {each.reason !== "" && <p class="muted">{each.reason}</p>}
          </dd>
        </dl>
      ))}
    </Panel>
  );
}
