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
  PatternField,
  plain,
  Waiting,
  workerOptions,
} from "../parts/controls.tsx";
import { TensorName } from "../parts/tensor_name.tsx";
import { type App, go, setParameters, useAnswer, useApp, useSettled } from "../state.ts";

const MOST_CELLS = 3_000_000; // of one answer
const MOST_COLUMNS = 2000;

/** Parameters of the request in the address of the page. */
function chosen(app: App): Record<string, string> {
  const { statistic = "", kind = "", mode = "", worker = "" } = app.route.parameters;
  return { run: app.run, statistic, kind, mode, worker };
}

/** The visible steps in the address of a page; null for all. */
export function rangeOf(app: App): Range | null {
  const [from, to] = [Number(app.route.parameters.from ?? ""), Number(app.route.parameters.to ?? "")];
  return app.route.parameters.to !== undefined && to > from ? { from, to } : null;
}

/** Store the visible steps in the address. */
export function setRange(app: App, range: Range | null): void {
  const text = (value: number): string => String(Number(value.toFixed(2)));
  setParameters(app, range === null ? { from: "", to: "" } : { from: text(range.from), to: text(range.to) });
}

export function Layers() {
  const app = useApp();
  const request = chosen(app);
  const width = Math.min(MOST_COLUMNS, Math.max(300, innerWidth - 280));
  const { data: whole, error } = useAnswer<Answer>("layers", { ...request, columns: String(width) });
  const range = rangeOf(app);
  const visible = useSettled(range, 120);
  const columns = Math.min(
    width,
    Math.max(100, Math.floor(MOST_CELLS / Math.max(1, whole?.rows.length ?? 1))),
  );
  const zoomed = visible !== null && app.source.live && whole !== null;
  const detail = useAnswer<Answer>(
    "layers",
    zoomed
      ? {
          ...request,
          from: String(Math.floor(Math.max(0, visible.from))),
          to: String(Math.ceil(visible.to)),
          columns: String(columns),
        }
      : null,
  );
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
  const fitting = detail.data !== null && zoomed && sameRows(detail.data, whole) ? detail.data : null;
  const rowHeight = Number(app.route.parameters.rows ?? "") || null;
  return (
    <div class="page layers">
      <h1 class="hidden">Layers</h1>
      <Toolbar answer={whole} error={filter.error} pattern={pattern} range={range} rowHeight={rowHeight} />
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
      {detail.error !== "" && zoomed && (
        <p class="notice warning" role="alert">
          {detail.error}
        </p>
      )}
    </div>
  );
}

function sameRows(first: Answer, second: Answer): boolean {
  return (
    first.kind === second.kind &&
    first.statistic.id === second.statistic.id &&
    first.mode === second.mode &&
    first.worker === second.worker &&
    first.rows.length === second.rows.length
  );
}

function nothing(answer: Answer): string {
  if (answer.kinds.length === 0)
    return "The run has no saved tensors yet. Tensors appear here after the first saved step.";
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
  return (
    <>
      <div class="heat-head">
        <ColorBar scale={scale} statistic={whole.statistic} />
        <span class="muted">
          {rowsShown.length === whole.rows.length
            ? counted(whole.rows.length, "tensor")
            : `${count(rowsShown.length)} of ${counted(whole.rows.length, "tensor")}`}
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
    <div class="table-scroll">
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
    </div>
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
