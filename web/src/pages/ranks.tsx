/** Workers next to each other: one statistic of one tensor, and the workers that deviate. */
import { useMemo } from "preact/hooks";
import { DeviationMap } from "../charts/deviation_map.tsx";
import { Lines } from "../charts/lines.tsx";
import type { Series } from "../charts/lines_data.ts";
import type { Mark } from "../charts/lines_plot.ts";
import type { Ranks as Answer } from "../contract.ts";
import { numbers } from "../data/decode.ts";
import { count, number } from "../data/format.ts";
import { Choice, Empty, Panel, plain, Waiting } from "../parts/controls.tsx";
import { TensorChoice } from "../parts/tensor_choice.tsx";
import { setParameters, useAnswer, useApp } from "../state.ts";
import { ink, seriesColor } from "../theme.ts";
import { rangeOf, setRange } from "./layers.tsx";

export function Ranks() {
  const app = useApp();
  const { name = "", statistic = "", mode = "" } = app.route.parameters;
  const request = { run: app.run, name, statistic, mode };
  const { data, error } = useAnswer<Answer>("ranks", request);
  if (data === null) return <Waiting error={error} />;
  const can = (changes: Record<string, string>): boolean =>
    app.source.has("ranks", { ...request, ...changes });
  return (
    <div class="page">
      <header class="headline">
        <h1>Ranks</h1>
        <p class="muted">{data.workers.length > 1 && `${count(data.workers.length)} workers`}</p>
      </header>
      {data.candidates.length > 0 && (
        <div class="toolbar">
          <TensorChoice
            value={data.tensor}
            names={data.candidates.filter((each) => app.source.live || can({ name: each }))}
            onChange={(next) => setParameters(app, { name: next })}
          />
          <Choice
            label="Statistic"
            value={data.statistic.id}
            options={data.statistics
              .filter((each) => can({ statistic: each.id }))
              .map((each) => ({ value: each.id, label: each.label }))}
            onChange={(next) => setParameters(app, { statistic: next })}
          />
          <Choice
            label="Mode"
            value={data.mode}
            options={plain(data.modes.filter((each) => can({ mode: each })))}
            onChange={(next) => setParameters(app, { mode: next })}
          />
        </div>
      )}
      {data.text !== "" && <Empty>{sentence(data.text)}</Empty>}
      {data.workers.length > 0 && data.text === "" && <Content data={data} />}
      {error !== "" && (
        <p class="notice warning" role="alert">
          {error}
        </p>
      )}
    </div>
  );
}

/** A text of an answer as a sentence. */
export function sentence(text: string): string {
  return text === "" ? "" : `${text[0]!.toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

type Outlier = Answer["outliers"][number];

/** Deviations by worker, the worker with the most first. */
function byWorker(
  outliers: readonly Outlier[],
): { worker: string; list: Outlier[]; first: Outlier; largest: Outlier }[] {
  const workers = [...new Set(outliers.map((each) => each.worker))];
  return workers
    .map((worker) => {
      const list = outliers.filter((each) => each.worker === worker);
      const first = list.reduce((a, b) => (b.at.step < a.at.step ? b : a));
      const largest = list.reduce((a, b) => (Math.abs(b.deviation) > Math.abs(a.deviation) ? b : a));
      return { worker, list, first, largest };
    })
    .sort((a, b) => b.list.length - a.list.length);
}

function Content({ data }: { readonly data: Answer }) {
  const app = useApp();
  const { theme } = app;
  const range = rangeOf(app);
  const worst = useMemo(() => new Set(data.outliers.map((each) => each.worker)), [data]);
  const series = useMemo<Series[]>(() => {
    const steps = numbers(data.steps);
    const values = numbers(data.values);
    return data.workers.map((worker, row) => ({
      label: worker,
      color: seriesColor(theme, row),
      width: worst.has(worker) ? 2.5 : 1.25,
      step: steps,
      value: values.slice(row * steps.length, (row + 1) * steps.length),
    }));
  }, [data, theme, worst]);
  const marks = useMemo<Mark[]>(
    () =>
      data.outliers.map((each) => ({
        step: each.at.mode_step,
        color: ink(theme).finding,
        text: each.worker,
      })),
    [data, theme],
  );
  return (
    <>
      <Panel title={`${data.statistic.label} of ${data.tensor}`}>
        <Lines
          label={`${data.statistic.label} of ${data.tensor} by worker`}
          series={series}
          marks={marks}
          height={260}
          range={range}
          onRange={(next) => setRange(app, next)}
          xLabel={`${data.mode} step`}
          y={data.statistic.scale === "log" ? "auto" : "linear"}
        />
      </Panel>
      <Panel title="Deviation from the median of the workers" note="in estimated standard deviations">
        <DeviationMap data={data} range={range} onRange={(next) => setRange(app, next)} />
      </Panel>
      <Panel title="Workers that deviate">
        {data.outliers.length === 0 ? (
          <Empty>No worker deviates clearly from the others.</Empty>
        ) : (
          <table>
            <thead>
              <tr>
                <th>Worker</th>
                <th class="num">Columns</th>
                <th>First at</th>
                <th>Largest at</th>
                <th class="num">Largest deviation</th>
              </tr>
            </thead>
            <tbody>
              {byWorker(data.outliers).map(({ worker, list, first, largest }) => (
                <tr key={worker}>
                  <td>
                    <b>{worker}</b>
                  </td>
                  <td class="num">{count(list.length)}</td>
                  <td>{first.at.text}</td>
                  <td>{largest.at.text}</td>
                  <td class="num">{number(largest.deviation)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
      </Panel>
    </>
  );
}
