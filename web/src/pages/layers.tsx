/** All layers in one picture: tensors in the order of the model by steps. */
import { useMemo } from "preact/hooks";
import { ColorBar } from "../charts/color_bar.tsx";
import { Tile } from "../charts/heat_tile.ts";
import { Heatmap } from "../charts/heatmap.tsx";
import { RangeBar } from "../charts/range_bar.tsx";
import type { Layers as Answer } from "../contract.ts";
import { scale as makeScale, type Scale } from "../data/colors.ts";
import { extent, numbers } from "../data/decode.ts";
import { count, counted, number } from "../data/format.ts";
import { byModule, matcher } from "../data/names.ts";
import type { Range } from "../data/range.ts";
import {
  Choice,
  Disclosure,
  Empty,
  NO_TENSORS,
  PatternField,
  plain,
  Scroll,
  Waiting,
  workerOptions,
} from "../parts/controls.tsx";
import { TensorName } from "../parts/tensor_name.tsx";
import { type App, go, setParameters, useAnswer, useApp } from "../state.ts";
import { rangeOf, setRange, useDetail } from "../visible.ts";

const MOST_CELLS = 2_500_000; // of one answer
const MOST_COLUMNS = 2000;
const LEAST_COLUMNS = 200;

/** Parameters of the request in the address of the page. */
function chosen(app: App): Record<string, string> {
  const { statistic = "", kind = "", mode = "", worker = "" } = app.route.parameters;
  return { run: app.run, statistic, kind, mode, worker };
}

/** Number of columns to request: one per pixel, and fewer for a run with very many tensors. */
function useColumns(app: App): number {
  const line = app.runs.runs.find((each) => each.id === app.run);
  const known = line !== undefined && line.status !== "reading";
  // biome-ignore lint/correctness/useExhaustiveDependencies: new rows of a live run do not change the number.
  return useMemo(() => {
    const width = Math.min(MOST_COLUMNS, Math.max(300, innerWidth - 280));
    const steps = Object.values(line?.steps ?? {}).reduce((sum, each) => sum + each, 0);
    const tensors = (line?.rows ?? 0) / Math.max(1, steps);
    return Math.min(width, Math.max(LEAST_COLUMNS, Math.floor(MOST_CELLS / Math.max(1, tensors))));
  }, [app.run, known]);
}

export function Layers() {
  const app = useApp();
  const request = chosen(app);
  const width = useColumns(app);
  const { data: whole, error } = useAnswer<Answer>("layers", { ...request, columns: String(width) });
  const range = rangeOf(app);
  const columns = Math.min(
    width,
    Math.max(100, Math.floor(MOST_CELLS / Math.max(1, whole?.rows.length ?? 1))),
  );
  const detail = useDetail<Answer>("layers", whole === null ? null : request, range, {
    more: { columns: String(columns) },
  });
  const pattern = app.route.parameters.pattern ?? "";
  const filter = useMemo(() => matcher(pattern), [pattern]);
  const rowsShown = useMemo(
    () =>
      whole === null
        ? []
        : byModule(whole.rows.map((row) => row.name)).filter((row) => filter.matches(whole.rows[row]!.name)),
    [whole, filter],
  );
  if (whole === null) return <Waiting error={error} />;
  const fitting = detail.data !== null && detail.data.rows.length === whole.rows.length ? detail.data : null;
  const rowHeight = Number(app.route.parameters.rows ?? "") || null;
  return (
    <div class="page layers">
      <h1 class="hidden">Layers</h1>
      {whole.kinds.length > 0 && (
        <Toolbar answer={whole} error={filter.error} pattern={pattern} range={range} rowHeight={rowHeight} />
      )}
      {whole.rows.length === 0 || whole.range === null ? (
        <Empty>{nothing(whole)}</Empty>
      ) : rowsShown.length === 0 ? (
        <Empty>No tensor of the kind "{whole.kind}" matches the filter.</Empty>
      ) : (
        <Picture whole={whole} detail={fitting} rowsShown={rowsShown} range={range} rowHeight={rowHeight} />
      )}
      {error !== "" && (
        <p class="notice warning" role="alert">
          {error}
        </p>
      )}
      {detail.error !== "" && (
        <p class="notice warning" role="alert">
          {detail.error}
        </p>
      )}
    </div>
  );
}

function nothing(answer: Answer): string {
  if (answer.kinds.length === 0) return NO_TENSORS;
  if (answer.rows.length === 0)
    return `No tensor of the kind "${answer.kind}" was saved in the mode ${answer.mode}.`;
  return `No saved step has a finite value of "${answer.statistic.label}" for the kind "${answer.kind}".`;
}

interface ToolbarProps {
  readonly answer: Answer;
  readonly error: string;
  readonly pattern: string;
  readonly range: Range | null;
  readonly rowHeight: number | null;
}

function Toolbar({ answer, error, pattern, range, rowHeight }: ToolbarProps) {
  const app = useApp();
  const { source } = app;
  const request = {
    ...chosen(app),
    kind: answer.kind,
    statistic: answer.statistic.id,
    mode: answer.mode,
    worker: answer.worker,
  };
  const can = (changes: Record<string, string>): boolean => source.has("layers", { ...request, ...changes });
  const set =
    (name: string) =>
    (value: string): void =>
      setParameters(app, { [name]: value });
  const statistics = answer.statistics
    .filter((each) => can({ statistic: each.id }))
    .map((each) => ({ value: each.id, label: each.label }));
  return (
    <div class="toolbar" role="toolbar" aria-label="Heat map">
      <Choice
        label="Tensors"
        value={answer.kind}
        options={plain(
          answer.kinds.filter((kind) => source.live || source.has("layers", { run: app.run, kind })),
        )}
        onChange={(kind) => setParameters(app, { kind, statistic: "" })}
      />
      <Choice
        label="Statistic"
        value={answer.statistic.id}
        options={statistics}
        onChange={set("statistic")}
      />
      <Choice
        label="Mode"
        value={answer.mode}
        options={plain(answer.modes.filter((mode) => can({ mode })))}
        onChange={set("mode")}
      />
      <Choice
        label="Worker"
        value={answer.worker}
        options={workerOptions(answer.workers).filter(({ value }) => can({ worker: value }))}
        onChange={set("worker")}
      />
      <PatternField value={pattern} error={error} onInput={set("pattern")} />
      <span class="spacer" />
      {rowHeight !== null && (
        <button type="button" class="quiet" onClick={() => setParameters(app, { rows: "" })}>
          Fit all rows
        </button>
      )}
      {range !== null && (
        <button type="button" class="quiet" onClick={() => setRange(app, null)}>
          All steps
        </button>
      )}
    </div>
  );
}

interface PictureProps {
  readonly whole: Answer;
  readonly detail: Answer | null;
  readonly rowsShown: readonly number[];
  readonly range: Range | null;
  readonly rowHeight: number | null;
}

function Picture({ whole, detail, rowsShown, range, rowHeight }: PictureProps) {
  const app = useApp();
  const scale = useMemo(() => scaleOf(whole), [whole]);
  const full = useMemo(() => new Tile(whole).range, [whole]);
  const resolution = useMemo(() => resolutionOf(detail ?? whole, range), [whole, detail, range]);
  return (
    <>
      <div class="heat-head">
        <ColorBar scale={scale} statistic={whole.statistic} />
        <span class="muted">
          {rowsShown.length === whole.rows.length
            ? counted(whole.rows.length, "tensor")
            : `${count(rowsShown.length)} of ${counted(whole.rows.length, "tensor")}`}
          {` · ${resolution}`}
          {whole.outlines.length > 0 && ` · ${counted(whole.outlines.length, "finding")} outlined`}
        </span>
        {whole.first_bad !== null && <FirstBad answer={whole} />}
      </div>
      <Heatmap
        whole={whole}
        detail={detail}
        rowsShown={rowsShown}
        scale={scale}
        range={range}
        rowHeight={rowHeight}
        label={`${summary(whole, rowsShown)} The arrow keys go to a cell, Enter opens its tensor.`}
        onRange={(next) => setRange(app, next)}
        onRowHeight={(next) => setParameters(app, { rows: next === null ? "" : next.toFixed(1) })}
        onOpen={(name, step) =>
          go(app, "tensor", { name, mode: whole.mode, worker: whole.worker, step: String(step) })
        }
      />
      <RangeBar whole={full} range={range} onRange={(next) => setRange(app, next)} />
      <Disclosure summary="Numbers as a table">
        {() => <NumberTable answer={whole} rowsShown={rowsShown} />}
      </Disclosure>
    </>
  );
}

/** How many steps a column of the visible picture covers, in words. */
function resolutionOf(answer: Answer, range: Range | null): string {
  const tile = new Tile(answer);
  const most = tile.mostSteps(range ?? tile.range);
  return most <= 1
    ? "each column is one step"
    : `a column covers up to ${count(most)} steps; zoom in for single steps`;
}

/** Scale of the colours. Values on one side of 0 have no diverging scale. */
function scaleOf(answer: Answer): Scale {
  const { statistic, range } = answer;
  if (statistic.scale === "diverging") {
    const found = extent(numbers(answer.mean));
    if (found !== null && found[0] >= 0) return makeScale("linear", found);
  }
  return makeScale(statistic.scale, range ?? [0, 1]);
}

function FirstBad({ answer }: { readonly answer: Answer }) {
  const bad = answer.first_bad!;
  return (
    <span class="first-bad">
      First bad: <TensorName name={bad.tensor} parameters={{ mode: answer.mode }} />{" "}
      <span class="muted">{bad.text}</span>
    </span>
  );
}

/** Text alternative of the heat map. */
function summary(answer: Answer, rowsShown: readonly number[]): string {
  const [low, high] = answer.range ?? [Number.NaN, Number.NaN];
  const bad = answer.first_bad === null ? "No value is NaN or infinite." : `${answer.first_bad.text}.`;
  return `Heat map: ${answer.statistic.label} of ${counted(rowsShown.length, "tensor")}, from ${number(low)} to ${number(high)}. ${bad}`;
}

function NumberTable({
  answer,
  rowsShown,
}: {
  readonly answer: Answer;
  readonly rowsShown: readonly number[];
}) {
  const tile = useMemo(() => new Tile(answer), [answer]);
  return (
    <Scroll label="Numbers">
      <table>
        <caption class="hidden">{answer.statistic.label}, over all steps</caption>
        <thead>
          <tr>
            <th>Tensor</th>
            <th class="num">smallest</th>
            <th class="num">mean</th>
            <th class="num">largest</th>
            <th class="num">columns with NaN or ∞</th>
          </tr>
        </thead>
        <tbody>
          {rowsShown.map((row) => {
            const each = rowNumbers(tile, row);
            return (
              <tr key={row}>
                <td>
                  <TensorName name={answer.rows[row]!.name} parameters={{ mode: answer.mode }} />
                </td>
                <td class="num">{number(each.low)}</td>
                <td class="num">{number(each.mean)}</td>
                <td class="num">{number(each.high)}</td>
                <td class="num">{count(each.bad)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </Scroll>
  );
}

/** Numbers of one row over all columns; NaN if it has no finite value. */
export function rowNumbers(
  tile: Tile,
  row: number,
): { low: number; mean: number; high: number; bad: number } {
  let [low, high, sum, finite, bad] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 0, 0, 0];
  for (let column = 0; column < tile.columns; column++) {
    const cell = tile.cell(row, column);
    if ((cell.flags & 6) !== 0) bad++;
    if (!Number.isFinite(cell.mean)) continue;
    low = Math.min(low, cell.min);
    high = Math.max(high, cell.max);
    sum += cell.mean;
    finite++;
  }
  if (finite === 0) return { low: Number.NaN, mean: Number.NaN, high: Number.NaN, bad };
  return { low, mean: sum / finite, high, bad };
}
