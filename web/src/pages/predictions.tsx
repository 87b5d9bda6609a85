/** Labels and predictions: confusion matrix, counts of classes, accuracy. */
import { useMemo } from "preact/hooks";
import { Lines } from "../charts/lines.tsx";
import type { Series } from "../charts/lines_data.ts";
import type { Predictions as Answer } from "../contract.ts";
import { line, type Numbers, numbers } from "../data/decode.ts";
import { count, percent } from "../data/format.ts";
import { Choice, Empty, Panel, plain, Scroll, Waiting } from "../parts/controls.tsx";
import { setParameters, useAnswer, useApp } from "../state.ts";
import { seriesColor } from "../theme.ts";
import { sentence } from "./ranks.tsx";

export function Predictions() {
  const app = useApp();
  const { mode = "", step = "" } = app.route.parameters;
  const request = { run: app.run, mode, step };
  const { data, error } = useAnswer<Answer>("predictions", request);
  if (data === null) return <Waiting error={error} />;
  return (
    <div class="page predictions">
      <header class="headline">
        <h1>Predictions</h1>
        <p class="muted">{data.labels !== "" && `${data.labels} and ${data.predictions}`}</p>
      </header>
      <div class="toolbar">
        <Choice
          label="Mode"
          value={data.mode}
          options={plain(
            data.modes.filter((each) => app.source.has("predictions", { ...request, mode: each })),
          )}
          onChange={(next) => setParameters(app, { mode: next, step: "" })}
        />
        {step !== "" && (
          <button type="button" class="quiet" onClick={() => setParameters(app, { step: "" })}>
            All counted steps
          </button>
        )}
      </div>
      {data.text !== "" && <Empty>{sentence(data.text)}</Empty>}
      {data.classes.length > 0 && data.text === "" && <Content data={data} />}
    </div>
  );
}

function Content({ data }: { readonly data: Answer }) {
  const app = useApp();
  const { theme, source, run } = app;
  const matrix = useMemo(() => numbers(data.matrix), [data]);
  const series = useMemo<Series[]>(() => {
    const { step, mean, min, max } = line(data.accuracy);
    return [{ label: "", color: seriesColor(theme, 0), step, value: mean, low: min, high: max }];
  }, [data, theme]);
  const size = data.classes.length;
  let total = 0;
  for (const each of matrix) total += each;
  let right = 0;
  for (let each = 0; each < size; each++) right += matrix[each * size + each]!;
  const steps =
    data.first === null || data.last === null
      ? ""
      : data.first.step === data.last.step
        ? data.first.text
        : `${data.first.text} to step ${count(data.last.mode_step)}`;
  const pick = (step: number): void => {
    if (source.has("predictions", { run, mode: data.mode, step: String(step) }))
      setParameters(app, { mode: data.mode, step: String(step) });
  };
  return (
    <div class="columns even">
      <Panel
        title="Confusion matrix"
        note={`${steps} · ${count(right)} of ${count(total)} right (${percent(total > 0 ? right / total : Number.NaN)})`}
      >
        <Matrix classes={data.classes} matrix={matrix} />
      </Panel>
      <div>
        <Panel title="Accuracy" note={source.live ? "click a step to count it alone" : undefined}>
          <Lines
            label="Accuracy"
            series={series}
            y="linear"
            height={200}
            xLabel={`${data.mode} step`}
            onPick={pick}
          />
        </Panel>
        <Panel title="Classes">
          <Counts classes={data.classes} matrix={matrix} />
        </Panel>
      </div>
    </div>
  );
}

interface MatrixProps {
  readonly classes: readonly string[];
  readonly matrix: Numbers;
}

/** Colour of a share of a row: blue for right predictions, orange for wrong ones. Texts stay readable on it. */
function tint(share: number, right: boolean): string {
  return `color-mix(in srgb, var(${right ? "--accent" : "--finding"}) ${(45 * Math.sqrt(share)).toFixed(1)}%, var(--surface))`;
}

/** One row per label, one column per prediction; the colour is the share of the row. */
function Matrix({ classes, matrix }: MatrixProps) {
  const size = classes.length;
  return (
    <Scroll label="Confusion matrix">
      <table class={`confusion ${size > 20 ? "small" : ""}`}>
        <caption>Rows: labels. Columns: predictions.</caption>
        <thead>
          <tr>
            <td />
            {classes.map((each) => (
              <th class="num" key={each} scope="col">
                {each}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {classes.map((label, row) => {
            const cells = Array.from(matrix.slice(row * size, (row + 1) * size));
            const sum = cells.reduce((total, each) => total + each, 0);
            return (
              <tr key={label}>
                <th class="num" scope="row">
                  {label}
                </th>
                {cells.map((value, column) => {
                  return (
                    <td
                      class={`num ${row === column ? "diagonal" : ""}`}
                      key={classes[column]}
                      title={`label ${label}, prediction ${classes[column]}: ${count(value)} of ${count(sum)}`}
                      style={value > 0 ? { background: tint(value / sum, row === column) } : {}}
                    >
                      {value > 0 ? count(value) : ""}
                    </td>
                  );
                })}
              </tr>
            );
          })}
        </tbody>
      </table>
    </Scroll>
  );
}

/** Counts of labels and predictions, and the recall and precision of each class. */
function Counts({ classes, matrix }: MatrixProps) {
  const size = classes.length;
  const rows = classes.map((label, at) => {
    let [labels, predictions] = [0, 0];
    for (let other = 0; other < size; other++) {
      labels += matrix[at * size + other]!;
      predictions += matrix[other * size + at]!;
    }
    const right = matrix[at * size + at]!;
    return { label, labels, predictions, recall: right / labels, precision: right / predictions };
  });
  const share = (value: number): string => (Number.isFinite(value) ? percent(value) : "–");
  return (
    <Scroll label="Classes">
      <table>
        <thead>
          <tr>
            <th>Class</th>
            <th class="num">Labels</th>
            <th class="num">Predictions</th>
            <th class="num">Recall</th>
            <th class="num">Precision</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((each) => (
            <tr key={each.label}>
              <td>{each.label}</td>
              <td class="num">{count(each.labels)}</td>
              <td class="num">{count(each.predictions)}</td>
              <td class="num">{share(each.recall)}</td>
              <td class="num">{share(each.precision)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
