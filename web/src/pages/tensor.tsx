/** One tensor: history, histograms over time, saved values, findings. */
import { useMemo, useState } from "preact/hooks";
import { HistogramChart } from "../charts/histogram.tsx";
import { Lines } from "../charts/lines.tsx";
import type { Series } from "../charts/lines_data.ts";
import type { Mark } from "../charts/lines_plot.ts";
import type {
  Points,
  QuantileCurve,
  StatisticsRow,
  TensorHistogram,
  TensorPage,
  Tensors,
} from "../contract.ts";
import { refined } from "../data/decode.ts";
import { count, counted, number, percent, shape } from "../data/format.ts";
import { byModule } from "../data/names.ts";
import type { Range } from "../data/range.ts";
import type { Parameters } from "../keys.ts";
import {
  Choice,
  Empty,
  NO_TENSORS,
  Panel,
  plain,
  Scroll,
  Waiting,
  workerOptions,
} from "../parts/controls.tsx";
import { FindingCard } from "../parts/findings.tsx";
import { ValuePanel } from "../parts/value.tsx";
import { href, setParameters, useAnswer, useApp } from "../state.ts";
import { seriesColor, type Theme } from "../theme.ts";
import { rangeOf, setRange, useDetail } from "../visible.ts";
import { findingMarks } from "./overview.tsx";

export function Tensor() {
  const app = useApp();
  const { name = "", mode = "", worker = "" } = app.route.parameters;
  const request = { run: app.run, name, mode, worker };
  const run = app.runs.runs.find((each) => each.id === app.run);
  const empty = run?.rows === 0 && (run.status === "running" || run.status === "ended");
  const { data: whole, error } = useAnswer<TensorPage>("tensor", empty ? null : request);
  const range = rangeOf(app);
  const detail = useDetail<TensorPage>("tensor", request, range);
  if (empty)
    return (
      <div class="page">
        <header class="headline">
          <h1>Tensor</h1>
        </header>
        <Empty>{NO_TENSORS}</Empty>
      </div>
    );
  if (whole === null) return <Waiting error={error} />;
  return <Content whole={whole} detail={detail.data} request={request} range={range} />;
}

interface ContentProps {
  readonly whole: TensorPage; // all steps
  readonly detail: TensorPage | null; // the visible steps, more finely
  readonly request: Parameters;
  readonly range: Range | null;
}

function Content({ whole, detail, request, range }: ContentProps) {
  const app = useApp();
  const { theme } = app;
  const { tensor } = whole;
  const marks = useMemo(
    () =>
      findingMarks(
        whole.findings.filter((each) => each.at.mode === whole.mode),
        theme,
      ),
    [whole, theme],
  );
  const shared = {
    marks,
    range,
    onRange: (next: Range | null) => setRange(app, next),
    sync: "tensor",
    onPick: (step: number) => setParameters(app, { step: String(step) }),
  };
  const facts = [tensor.kind, tensor.origin, shape(tensor.shape), tensor.dtype].filter((each) => each !== "");
  const can = (changes: Record<string, string>): boolean =>
    app.source.has("tensor", { run: app.run, name: tensor.name, ...changes });
  const single = tensor.shape.every((size) => size === 1);
  const empty = whole.mean.step.base64 === "";
  const chart = { page: whole, detail, theme, shared };
  const histograms = useAnswer<TensorHistogram>("histogram", single ? null : request);
  const visible = useDetail<TensorHistogram>("histogram", single ? null : request, range);
  const quantiles = histograms.data?.quantiles ?? [];
  return (
    <div class="page tensor">
      <header class="headline">
        <h1 class="tensor-title">{tensor.name}</h1>
        <p class="muted">{facts.join(" · ")}</p>
        <Neighbours name={tensor.name} />
      </header>
      <div class="toolbar">
        <Choice
          label="Mode"
          value={whole.mode}
          options={plain(whole.modes.filter((mode) => can({ mode })))}
          onChange={(mode) => setParameters(app, { mode, step: "", from: "", to: "" })}
        />
        <Choice
          label="Worker"
          value={whole.worker}
          options={workerOptions(whole.workers).filter(({ value }) => can({ worker: value }))}
          onChange={(worker) => setParameters(app, { worker })}
        />
        <span class="spacer" />
        {range !== null && (
          <button type="button" class="quiet" onClick={() => setRange(app, null)}>
            All steps
          </button>
        )}
      </div>
      {whole.absent !== "" && (
        <p class="notice warning">
          <b>No value</b> {whole.absent}
        </p>
      )}
      {empty && <Empty>The tensor has no stored statistics in the mode {whole.mode}.</Empty>}
      <div class="columns even">
        <div>
          {!empty && single && <SingleValue {...chart} />}
          {!empty && !single && <Spread {...chart} />}
          {!empty && !single && <Norm {...chart} />}
          {!single && (
            <Histograms
              whole={histograms.data}
              detail={visible.data}
              error={histograms.error}
              shared={shared}
            />
          )}
        </div>
        <div>
          {whole.findings.length > 0 && (
            <Panel title={counted(whole.findings.length, "finding")}>
              {whole.findings.slice(0, 20).map((each, index) => (
                <FindingCard key={index} finding={each} tensor={false} />
              ))}
            </Panel>
          )}
          <ValuePanel page={whole} />
          {quantiles.length > 0 && (
            <Quantiles
              name={tensor.name}
              whole={quantiles}
              detail={visible.data?.quantiles ?? null}
              theme={theme}
              shared={shared}
            />
          )}
        </div>
      </div>
      {whole.rows.length > 0 && <Rows rows={whole.rows} />}
    </div>
  );
}

/** Links to the tensors before and after this one in the model. */
function Neighbours({ name }: { readonly name: string }) {
  const app = useApp();
  const { data } = useAnswer<Tensors>("tensors", { run: app.run });
  const names = useMemo(() => {
    const all = (data?.tensors ?? []).map((each) => each.name);
    return byModule(all)
      .map((index) => all[index]!)
      .filter((each) => app.source.has("tensor", { run: app.run, name: each }));
  }, [data, app.source, app.run]);
  const at = names.indexOf(name);
  if (at < 0) return null;
  const link = (index: number, arrow: string, text: string) => {
    const other = names[index];
    return other === undefined ? null : (
      <a
        class="button quiet"
        href={href(app, "tensor", { name: other })}
        title={`${text}: ${other}`}
        aria-label={`${text}: ${other}`}
      >
        {arrow}
      </a>
    );
  };
  return (
    <span class="neighbours">
      {link(at - 1, "↑", "Previous tensor")}
      {link(at + 1, "↓", "Next tensor")}
    </span>
  );
}

interface Shared {
  readonly marks: readonly Mark[];
  readonly range: Range | null;
  readonly onRange: (range: Range | null) => void;
  readonly sync: string;
  readonly onPick: (step: number) => void;
}

interface ChartProps {
  readonly page: TensorPage;
  readonly detail: TensorPage | null;
  readonly theme: Theme;
  readonly shared: Shared;
}

const HEIGHT = 190;

/** A curve with its range. */
function banded(whole: Points, detail: Points | undefined, label: string, color: string): Series {
  const { step, mean, min, max, bad } = refined(whole, detail);
  return { label, color, step, value: mean, low: min, high: max, bad };
}

/** History of a tensor with one element. */
function SingleValue({ page, detail, theme, shared }: ChartProps) {
  const series = useMemo(
    () => [banded(page.mean, detail?.mean, "", seriesColor(theme, 0))],
    [page, detail, theme],
  );
  return (
    <Panel title="Value">
      <Lines label={`Value of ${page.tensor.name}`} series={series} height={260} {...shared} />
    </Panel>
  );
}

interface HistogramsProps {
  readonly whole: TensorHistogram | null; // null until the answer arrives
  readonly detail: TensorHistogram | null;
  readonly error: string;
  readonly shared: Shared;
}

function Histograms({ whole, detail, error, shared }: HistogramsProps) {
  const all = whole?.histogram ?? null;
  return (
    <Panel title="Histogram over time" note={all === null ? undefined : "share of elements by magnitude"}>
      {whole === null ? (
        <Waiting error={error} />
      ) : all === null ? (
        <Empty>The run has no histograms of this tensor.</Empty>
      ) : (
        <HistogramChart
          histogram={detail?.histogram ?? all}
          whole={all}
          mode={whole.mode}
          range={shared.range}
          onRange={shared.onRange}
          onPick={shared.onPick}
        />
      )}
    </Panel>
  );
}

/** Mean of the elements with one standard deviation, and their minimum and maximum. */
function Spread({ page, detail, theme, shared }: ChartProps) {
  const series = useMemo<Series[]>(() => {
    const mean = refined(page.mean, detail?.mean);
    const deviation = refined(page.std, detail?.std).mean;
    const low = mean.mean.map((value, at) => value - deviation[at]!);
    const high = mean.mean.map((value, at) => value + deviation[at]!);
    const [lowest, highest] = [refined(page.min, detail?.min), refined(page.max, detail?.max)];
    return [
      {
        label: "mean ± std",
        color: seriesColor(theme, 0),
        step: mean.step,
        value: mean.mean,
        low,
        high,
        bad: mean.bad,
      },
      { label: "min", color: seriesColor(theme, 2), step: lowest.step, value: lowest.min, width: 1 },
      { label: "max", color: seriesColor(theme, 1), step: highest.step, value: highest.max, width: 1 },
    ];
  }, [page, detail, theme]);
  return (
    <Panel title="Elements">
      <Lines
        label={`Elements of ${page.tensor.name}`}
        series={series}
        y="linear"
        height={HEIGHT}
        {...shared}
      />
    </Panel>
  );
}

function Norm({ page, detail, theme, shared }: ChartProps) {
  const series = useMemo(
    () => [banded(page.l2, detail?.l2, "", seriesColor(theme, 0))],
    [page, detail, theme],
  );
  return (
    <Panel title="L2 norm">
      <Lines label={`L2 norm of ${page.tensor.name}`} series={series} height={HEIGHT - 30} {...shared} />
    </Panel>
  );
}

interface QuantilesProps {
  readonly name: string;
  readonly whole: readonly QuantileCurve[];
  readonly detail: readonly QuantileCurve[] | null;
  readonly theme: Theme;
  readonly shared: Shared;
}

/** Quantiles of the magnitudes, from the smallest to the largest in colours of one family. */
function Quantiles({ name, whole, detail, theme, shared }: QuantilesProps) {
  const series = useMemo<Series[]>(
    () =>
      whole.map((each, index) => {
        const { step, mean, bad } = refined(each.points, detail?.[index]?.points);
        return {
          label: percent(each.quantile),
          color: seriesColor(theme, index),
          step,
          value: mean,
          bad,
        };
      }),
    [whole, detail, theme],
  );
  return (
    <Panel title="Quantiles of the magnitudes" note="from histograms: within a factor of 2">
      <Lines label={`Quantiles of ${name}`} series={series} y="log" height={HEIGHT} {...shared} />
    </Panel>
  );
}

/** The newest rows of statistics as a table. */
function Rows({ rows }: { readonly rows: readonly StatisticsRow[] }) {
  const [all, setAll] = useState(false);
  const names = [...new Set(rows.flatMap((each) => Object.keys(each.values)))];
  const workers = new Set(rows.map((each) => each.worker)).size > 1;
  const shown = all ? rows : rows.slice(0, 8);
  return (
    <Panel title="Newest statistics">
      <Scroll label="Newest statistics">
        <table>
          <thead>
            <tr>
              <th>Step</th>
              {workers && <th>Worker</th>}
              <th>State</th>
              {names.map((each) => (
                <th class="num" key={each}>
                  {each.replaceAll("_", " ")}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map((each) => (
              <tr key={`${each.at.step} ${each.at.mode} ${each.worker}`}>
                <td class="nowrap">{each.at.text}</td>
                {workers && <td>{each.worker}</td>}
                <td title={each.reason}>
                  {each.status}
                  {each.reason !== "" && <span class="muted"> {each.reason}</span>}
                </td>
                {names.map((name) => (
                  <td class="num" key={name}>
                    {cell(each.values[name])}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {rows.length > shown.length && (
        <button type="button" class="quiet" onClick={() => setAll(true)}>
          Show {count(rows.length)} rows
        </button>
      )}
    </Panel>
  );
}

function cell(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : number(value);
}
