/** Line chart on canvas (uPlot): zoom by drag and wheel, values at the cursor in the legend, findings as marks. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { number, steps } from "../data/format.ts";
import { panned, type Range, same, zoomed } from "../data/range.ts";
import { linearTicks, linearTickText, logTicks, logTickText } from "../data/ticks.ts";
import { useApp, useSize } from "../state.ts";
import { ink, type Theme } from "../theme.ts";
import { aligned, type Series, suitsLog } from "./lines_data.ts";

/** A vertical line at a step, such as a finding. */
export interface Mark {
  readonly step: number;
  readonly color: string;
  readonly text: string;
}

interface Props {
  readonly label: string; // what the chart shows
  readonly series: readonly Series[];
  readonly marks?: readonly Mark[];
  readonly height?: number;
  readonly y?: "auto" | "log" | "linear";
  readonly unit?: string;
  readonly xLabel?: string;
  readonly xText?: (x: number) => string;
  readonly range?: Range | null; // visible steps; null: all
  readonly onRange?: (range: Range | null) => void;
  readonly sync?: string; // charts with the same key share the cursor
  readonly legend?: boolean;
  readonly onPick?: (step: number) => void; // a click
}

export function Lines(props: Props) {
  const { theme } = useApp();
  const [box, width] = useSize<HTMLDivElement>();
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [cursor, setCursor] = useState<number | null>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const { series, height = 220 } = props;
  const log = props.y === "log" || (props.y !== "linear" && suitsLog(series));
  const data = useMemo(() => aligned(series, log), [series, log]);
  const whole = useMemo<Range>(
    () => ({ from: data.steps[0] ?? 0, to: data.steps[data.steps.length - 1] ?? 1 }),
    [data],
  );
  const structure = series.map((each) => [each.label, each.color, each.low !== undefined, each.dash, each.width]);
  const signature = JSON.stringify([structure, log, height, theme, props.unit, props.sync]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: `signature` stands for the options.
  useEffect(() => {
    if (host.current === null || width === 0) return undefined;
    const made = new uPlot(
      options({ latest, theme, log, width, height, onCursor: setCursor }),
      [data.steps, ...data.columns] as uPlot.AlignedData,
      host.current,
    );
    plot.current = made;
    return () => {
      made.destroy();
      plot.current = null;
    };
  }, [signature, width === 0]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: a new plot has its data, size and range already.
  useEffect(() => {
    const made = plot.current;
    if (made === null) return;
    made.batch(() => {
      made.setData([data.steps, ...data.columns] as uPlot.AlignedData, false);
      const shown = props.range ?? whole;
      const scale = made.scales.x;
      const before = { from: scale?.min ?? Number.NaN, to: scale?.max ?? Number.NaN };
      const next = shown.to > shown.from ? shown : { from: shown.from - 1, to: shown.to + 1 };
      if (!same(before, next)) made.setScale("x", { min: next.from, max: next.to });
      else made.setScale("x", { min: next.from, max: next.to });
    });
  }, [data, signature, width === 0, props.range?.from, props.range?.to]);

  useEffect(() => {
    if (width > 0) plot.current?.setSize({ width, height });
  }, [width, height]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: a new plot shows all series.
  useEffect(() => {
    series.forEach((each, index) => {
      const show = !hidden.has(each.label);
      for (let offset = 1; offset <= 3; offset++) {
        if (plot.current?.series[index * 3 + offset]?.show !== show) {
          plot.current?.setSeries(index * 3 + offset, { show });
        }
      }
    });
  }, [hidden, signature, width === 0]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: drawn again when the marks change.
  useEffect(() => plot.current?.redraw(false), [props.marks]);

  const move = (event: KeyboardEvent): void => {
    const range = props.range ?? whole;
    const length = range.to - range.from;
    const moves: Record<string, () => Range | null> = {
      "+": () => zoomed(range, 0.6, (range.from + range.to) / 2, whole),
      "=": () => zoomed(range, 0.6, (range.from + range.to) / 2, whole),
      "-": () => zoomed(range, 1 / 0.6, (range.from + range.to) / 2, whole),
      ArrowLeft: () => panned(range, -length / 5, whole),
      ArrowRight: () => panned(range, length / 5, whole),
      "0": () => null,
    };
    const next = moves[event.key];
    if (next === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const target = next();
    props.onRange?.(target === null || same(target, whole) ? null : target);
  };

  return (
    <figure class="chart">
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: the keys zoom and pan. */}
      <div class="chart-box" ref={box} tabIndex={0} role="img" aria-label={summary(props.label, series)} onKeyDown={move}>
        <div ref={host} />
      </div>
      {props.legend !== false && (
        <Legend series={series} steps={data.steps} columns={data.columns} cursor={cursor} hidden={hidden}
          xText={props.xText} unit={props.unit ?? ""}
          onToggle={(label) => setHidden(toggled(hidden, label))} />
      )}
    </figure>
  );
}

function toggled(labels: ReadonlySet<string>, label: string): ReadonlySet<string> {
  const next = new Set(labels);
  if (!next.delete(label)) next.add(label);
  return next;
}

/** Text alternative of a chart: first and last value of its series. */
function summary(label: string, series: readonly Series[]): string {
  const texts = series.slice(0, 8).map((each) => {
    const finite = Array.from(each.value).filter(Number.isFinite);
    if (finite.length === 0) return `${each.label}: no finite value`;
    const last = each.step[each.step.length - 1] ?? 0;
    return `${each.label}: ${number(finite[0])} at first, ${number(finite.at(-1))} at step ${last}`;
  });
  const more = series.length > 8 ? `; and ${series.length - 8} more lines` : "";
  return `Line chart: ${label}. ${texts.join("; ")}${more}`;
}

interface LegendProps {
  readonly series: readonly Series[];
  readonly steps: readonly number[];
  readonly columns: readonly (readonly (number | null | undefined)[])[];
  readonly cursor: number | null;
  readonly hidden: ReadonlySet<string>;
  readonly unit: string;
  readonly xText: ((x: number) => string) | undefined;
  readonly onToggle: (label: string) => void;
}

function Legend({ series, steps: all, columns, cursor, hidden, unit, xText, onToggle }: LegendProps) {
  const step = cursor === null ? undefined : all[cursor];
  return (
    <figcaption class="legend">
      {series.length > 1 || series[0]?.label !== ""
        ? series.map((each, index) => (
            <button type="button" class="legend-item" aria-pressed={!hidden.has(each.label)}
              title="Show or hide this line" onClick={() => onToggle(each.label)} key={each.label}>
              <svg width="16" height="8" aria-hidden="true">
                <line x1="0" x2="16" y1="4" y2="4" stroke={each.color} stroke-width="2.5"
                  stroke-dasharray={each.dash?.join(" ")} />
              </svg>
              <span>{each.label}</span>
              {cursor !== null && <b>{valueAt(columns[index * 3], cursor, unit)}</b>}
            </button>
          ))
        : cursor !== null && <b class="legend-item">{valueAt(columns[0], cursor, unit)}</b>}
      <span class="legend-step">{step === undefined ? "" : xText === undefined ? steps(step, step) : xText(step)}</span>
    </figcaption>
  );
}

/** Value of a column at the cursor, or the last one before it. */
function valueAt(column: readonly (number | null | undefined)[] | undefined, at: number, unit: string): string {
  for (let index = at; index >= 0; index--) {
    const value = column?.[index];
    if (value === null) return "no finite value";
    if (value !== undefined) return `${number(value)}${unit === "" ? "" : `\u202f${unit}`}`;
  }
  return "–";
}

interface Setting {
  readonly latest: { readonly current: Props };
  readonly theme: Theme;
  readonly log: boolean;
  readonly width: number;
  readonly height: number;
  readonly onCursor: (index: number | null) => void;
}

function options({ latest, theme, log, width, height, onCursor }: Setting): uPlot.Options {
  const colors = ink(theme);
  const { series, sync, xLabel } = latest.current;
  const lines: uPlot.Series[] = [{}];
  const bands: uPlot.Band[] = [];
  series.forEach((each, index) => {
    const stroke: uPlot.Series = { stroke: each.color, width: each.width ?? 1.5, points: { size: 5 } };
    if (each.dash !== undefined) stroke.dash = [...each.dash];
    const edge: uPlot.Series = { stroke: "transparent", width: 0, points: { show: false } };
    lines.push(stroke, edge, edge);
    if (each.low !== undefined) bands.push({ series: [index * 3 + 3, index * 3 + 2], fill: `${each.color}2e` });
  });
  const font = "11px system-ui, sans-serif";
  const grid = { stroke: colors.faint, width: 1 };
  const axis = { stroke: colors.muted, font, grid, ticks: { show: false } };
  const cursor: uPlot.Cursor = {
    drag: { x: true, y: false, setScale: false, dist: 4 },
    points: { size: 6, show: (u, index) => (index % 3 === 1 ? point(u, index) : document.createElement("i")) },
    focus: { prox: -1 },
  };
  if (sync !== undefined) cursor.sync = { key: sync, setSeries: false };
  return {
    width,
    height,
    padding: [10, 14, 0, 0],
    legend: { show: false },
    cursor,
    series: lines,
    bands,
    scales: {
      x: { time: false, auto: false },
      y: log ? { distr: 3, range: logRange } : { range: linearRange },
    },
    axes: [
      {
        ...axis,
        size: xLabel === undefined ? 24 : 40,
        gap: 4,
        ...(xLabel === undefined ? {} : { label: xLabel, labelSize: 16, labelFont: font, labelGap: 0 }),
        splits: (u, _axis, min, max) => linearTicks(min, max, Math.max(2, u.width / 110), true),
        values: (_u, ticks) => ticks.map((tick) => linearTickText(tick)),
      },
      {
        ...axis,
        size: 52,
        gap: 4,
        splits: (u, _axis, min, max) =>
          log ? logTicks(min, max, u.height / 34) : linearTicks(min, max, Math.max(2, u.height / 42)),
        values: (_u, ticks) => {
          const step = (ticks[1] ?? 0) - (ticks[0] ?? 0);
          return ticks.map((tick) => (log ? logTickText(tick) : linearTickText(tick, step)));
        },
        filter: (_u, ticks) => ticks,
      },
    ],
    hooks: {
      setCursor: [(u) => onCursor(u.cursor.idx ?? null)],
      setSelect: [(u) => select(u, latest.current)],
      ready: [(u) => listen(u, latest)],
      draw: [(u) => annotate(u, latest.current, theme)],
    },
  };
}

function point(u: uPlot, index: number): HTMLElement {
  const element = document.createElement("div");
  const stroke = u.series[index]?.stroke;
  element.style.background = typeof stroke === "function" ? String(stroke(u, index)) : String(stroke);
  return element;
}

/** Range of a linear axis with room above and below. */
function linearRange(_u: uPlot, low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [0, 1];
  const room = high > low ? (high - low) * 0.06 : Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

function logRange(_u: uPlot, low: number | null, high: number | null): [number, number] {
  if (low === null || high === null || low <= 0) return [0.1, 1];
  const room = Math.max(1.15, (high / low) ** 0.05);
  return [low / room, high * room];
}

/** A drag zooms to its steps. */
function select(u: uPlot, props: Props): void {
  const { left, width } = u.select;
  if (width < 4) return;
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  props.onRange?.({ from: u.posToVal(left, "x"), to: u.posToVal(left + width, "x") });
}

/** Wheel, double click and click of a plot. */
function listen(u: uPlot, latest: { readonly current: Props }): void {
  const whole = (): Range => ({ from: u.data[0][0] ?? 0, to: u.data[0][u.data[0].length - 1] ?? 1 });
  const send = (range: Range): void => latest.current.onRange?.(same(range, whole()) ? null : range);
  u.over.addEventListener(
    "wheel",
    (event) => {
      if (latest.current.onRange === undefined) return;
      const range = { from: u.scales.x?.min ?? 0, to: u.scales.x?.max ?? 1 };
      const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (!sideways && !event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      if (sideways) {
        const delta = event.deltaX || event.deltaY;
        send(panned(range, (delta / u.over.clientWidth) * (range.to - range.from), whole()));
      } else {
        const center = u.posToVal(u.cursor.left ?? 0, "x");
        send(zoomed(range, Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.004), center, whole()));
      }
    },
    { passive: false },
  );
  u.over.addEventListener("dblclick", () => latest.current.onRange?.(null));
  let down = 0;
  u.over.addEventListener("pointerdown", (event) => {
    down = event.clientX;
  });
  u.over.addEventListener("click", (event) => {
    const index = u.cursor.idx;
    if (Math.abs(event.clientX - down) < 4 && index !== null && index !== undefined) {
      latest.current.onPick?.(u.data[0][index] ?? 0);
    }
  });
}

/** Draw marks of findings, and triangles at the bottom where values are NaN or infinite. */
function annotate(u: uPlot, props: Props, theme: Theme): void {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left - 6 * ratio, 0, bbox.width + 12 * ratio, bbox.top + bbox.height + 2 * ratio);
  ctx.clip();
  for (const mark of props.marks ?? []) {
    const x = Math.round(u.valToPos(mark.step, "x", true)) + 0.5;
    ctx.strokeStyle = mark.color;
    ctx.fillStyle = mark.color;
    ctx.globalAlpha = 0.55;
    ctx.lineWidth = ratio;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.globalAlpha = 1;
    diamond(ctx, x, bbox.top, 4 * ratio);
  }
  ctx.fillStyle = ink(theme).bad;
  for (const each of props.series) {
    if (each.bad === undefined) continue;
    for (let index = 0; index < each.step.length; index++) {
      if (!((each.bad[index] ?? 0) > 0)) continue;
      const x = u.valToPos(each.step[index]!, "x", true);
      triangle(ctx, x, bbox.top + bbox.height, 5 * ratio);
    }
  }
  ctx.restore();
}

function diamond(ctx: CanvasRenderingContext2D, x: number, y: number, size: number): void {
  ctx.beginPath();
  ctx.moveTo(x, y - size);
  ctx.lineTo(x + size, y);
  ctx.lineTo(x, y + size);
  ctx.lineTo(x - size, y);
  ctx.fill();
}

function triangle(ctx: CanvasRenderingContext2D, x: number, y: number, size: number): void {
  ctx.beginPath();
  ctx.moveTo(x, y - size * 1.6);
  ctx.lineTo(x + size, y);
  ctx.lineTo(x - size, y);
  ctx.fill();
}
