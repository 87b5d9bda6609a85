/** Workers next to each other: one statistic of one tensor, and the workers that deviate. */
import { useMemo } from "preact/hooks";
import { DeviationMap } from "../charts/deviation_map.tsx";
import { Lines } from "../charts/lines.tsx";
import type { Series } from "../charts/lines_data.ts";
import type { Mark } from "../charts/lines_plot.ts";
import type { Ranks as Answer } from "../contract.ts";
import { type Numbers, numbers, splice } from "../data/decode.ts";
import { count, number } from "../data/format.ts";
import { Empty, Panel, Waiting } from "../parts/controls.tsx";
import { StatisticToolbar } from "../parts/statistic_toolbar.tsx";
import { useAnswer, useApp } from "../state.ts";
import { ink, seriesColor } from "../theme.ts";
import { rangeOf, setRange, useDetail } from "../visible.ts";

export function Ranks() {
  const app = useApp();
  const { name = "", statistic = "", mode = "" } = app.route.parameters;
  const request = { run: app.run, name, statistic, mode };
  const { data, error } = useAnswer<Answer>("ranks", request);
  const detail = useDetail<Answer>("ranks", request, rangeOf(app));
  if (data === null) return <Waiting error={error} />;
  return (
    <div class="page">
      <header class="headline">
        <h1>Ranks</h1>
        <p class="muted">{data.workers.length > 1 && `${count(data.workers.length)} workers`}</p>
      </header>
      {data.candidates.length > 0 && (
        <StatisticToolbar
          page="ranks"
          request={request}
          name={data.tensor}
          names={data.candidates}
          answer={data}
        />
      )}
      {data.text !== "" && <Empty>{sentence(data.text)}</Empty>}
      {data.workers.length > 0 && data.text === "" && <Content data={data} detail={detail.data} />}
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

/** Values of one worker. */
function rowOf({ steps, values }: Answer, row: number): Numbers {
  const columns = numbers(steps).length;
  return numbers(values).subarray(row * columns, (row + 1) * columns);
}

/** detail: the visible steps, more finely. */
function Content({ data, detail }: { readonly data: Answer; readonly detail: Answer | null }) {
  const app = useApp();
  const { theme } = app;
  const range = rangeOf(app);
  const worst = useMemo(() => new Set(data.outliers.map((each) => each.worker)), [data]);
  const series = useMemo<Series[]>(() => {
    const [steps, fine] = [numbers(data.steps), numbers((detail ?? data).steps)];
    const join = splice(steps, fine);
    return data.workers.map((worker, row) => ({
      label: worker,
      color: seriesColor(theme, row),
      width: worst.has(worker) ? 2.5 : 1.25,
      step: join(steps, fine),
      value: join(rowOf(data, row), rowOf(detail ?? data, row)),
    }));
  }, [data, detail, theme, worst]);
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
        <DeviationMap data={detail ?? data} range={range} onRange={(next) => setRange(app, next)} />
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
