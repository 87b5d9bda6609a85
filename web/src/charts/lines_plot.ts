/** Options of uPlot for a line chart, its gestures, and the marks that are drawn over it. */
import type uPlot from "uplot";
import { panned, type Range, same, zoomed } from "../data/range.ts";
import { linearTicks, linearTickText, logTicks, logTickText } from "../data/ticks.ts";
import { ink, type Theme } from "../theme.ts";
import type { Series } from "./lines_data.ts";

/** A vertical line at a step, such as a finding. */
export interface Mark {
  readonly step: number;
  readonly color: string;
  readonly text: string;
}

export interface LinesProps {
  readonly label: string; // content of the chart
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

interface Setting {
  readonly latest: { readonly current: LinesProps };
  readonly theme: Theme;
  readonly log: boolean;
  readonly width: number;
  readonly height: number;
  readonly onCursor: (index: number | null) => void;
}

/** Options of the plot; `latest` has the newest properties of the chart. */
export function options({ latest, theme, log, width, height, onCursor }: Setting): uPlot.Options {
  const colors = ink(theme);
  const { series, sync, xLabel } = latest.current;
  const lines: uPlot.Series[] = [{}];
  const bands: uPlot.Band[] = [];
  series.forEach((each, index) => {
    const stroke: uPlot.Series = {
      stroke: each.color,
      width: each.width ?? 1.5,
      points: { size: 5, fill: colors.surface },
    };
    if (each.dash !== undefined) stroke.dash = [...each.dash];
    const edge: uPlot.Series = { stroke: "transparent", width: 0, points: { show: false } };
    lines.push(stroke, edge, edge);
    if (each.low !== undefined)
      bands.push({ series: [index * 3 + 3, index * 3 + 2], fill: `${each.color}2e` });
  });
  const font = "11px system-ui, sans-serif";
  const grid = { stroke: colors.faint, width: 1 };
  const axis = { stroke: colors.muted, font, grid, ticks: { show: false } };
  const cursor: uPlot.Cursor = {
    drag: { x: true, y: false, setScale: false, dist: 4 },
    points: {
      size: 6,
      show: (u, index) => (index % 3 === 1 ? point(u, index) : document.createElement("i")),
    },
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
        size: 22,
        gap: 4,
        ...(xLabel === undefined ? {} : { label: xLabel, labelSize: 15, labelFont: font, labelGap: 0 }),
        splits: (u, _axis, min, max) => linearTicks(min, max, Math.max(2, u.width / 85), true),
        values: (_u, ticks) => ticks.map((tick) => linearTickText(tick)),
      },
      {
        ...axis,
        size: 52,
        gap: 4,
        splits: (u, _axis, min, max) =>
          log ? logTicks(min, max, u.height / 32) : linearTicks(min, max, Math.max(3, u.height / 34)),
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
function select(u: uPlot, props: LinesProps): void {
  const { left, width } = u.select;
  if (width < 4) return;
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  props.onRange?.({ from: u.posToVal(left, "x"), to: u.posToVal(left + width, "x") });
}

/** Wheel, double click and click of a plot. */
function listen(u: uPlot, latest: { readonly current: LinesProps }): void {
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

const MOST_LINES = 16; // more marks are drawn without vertical lines

/** Draw marks of findings, and triangles at the bottom where values are NaN or infinite. */
function annotate(u: uPlot, props: LinesProps, theme: Theme): void {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left - 6 * ratio, 0, bbox.width + 12 * ratio, bbox.top + bbox.height + 2 * ratio);
  ctx.clip();
  const marks = props.marks ?? [];
  for (const mark of marks) {
    const x = Math.round(u.valToPos(mark.step, "x", true)) + 0.5;
    ctx.strokeStyle = mark.color;
    ctx.fillStyle = mark.color;
    if (marks.length <= MOST_LINES) {
      ctx.globalAlpha = 0.55;
      ctx.lineWidth = ratio;
      ctx.setLineDash([3 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.globalAlpha = 1;
    }
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
