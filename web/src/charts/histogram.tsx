/** Histograms of log2 magnitudes over time: colours for shares of elements; zeros and bad values in rows of their own. */
import { useCallback, useMemo, useState } from "preact/hooks";
import type { LogHistogram } from "../contract.ts";
import { pixel, SEQUENTIAL } from "../data/colors.ts";
import { lastAtMost, type Numbers, numbers } from "../data/decode.ts";
import { percent, steps as stepText } from "../data/format.ts";
import type { Range } from "../data/range.ts";
import { linearTicks, linearTickText, logTickText } from "../data/ticks.ts";
import { useApp, useSize } from "../state.ts";
import { ink } from "../theme.ts";
import { Picture, type Tick } from "./picture.tsx";

interface Props {
  readonly histogram: LogHistogram;
  readonly whole: LogHistogram;
  readonly mode: string;
  readonly range: Range | null;
  readonly onRange: (range: Range | null) => void;
  readonly onPick: (step: number) => void;
}

const HEIGHT = 240;
const EXTRA = 2; // rows below the bins: bad values, zeros
const FIRST_BIN = -40; // this bin also counts all smaller magnitudes,
const LAST_BIN = 23; // and this one all larger magnitudes
const EXTRA_SHARE = 0.07; // height of each of them, as a share of the picture

/** Lower edge of a row, as a share of the height from the bottom. */
function edge(row: number, rows: number): number {
  if (row <= EXTRA) return row * EXTRA_SHARE;
  const base = EXTRA * EXTRA_SHARE;
  return base + ((row - EXTRA) / (rows - EXTRA)) * (1 - base);
}

/** The row at a share of the height from the bottom. */
function rowAt(share: number, rows: number): number {
  const base = EXTRA * EXTRA_SHARE;
  if (share < base) return Math.floor(share / EXTRA_SHARE);
  return Math.min(rows - 1, EXTRA + Math.floor(((share - base) / (1 - base)) * (rows - EXTRA)));
}

export function HistogramChart({ histogram, whole, mode, range, onRange, onPick }: Props) {
  const { theme } = useApp();
  const [box, width] = useSize<HTMLDivElement>();
  const [at, setAt] = useState<readonly [number, number] | null>(null);
  const data = useMemo(() => decoded(histogram), [histogram]);
  const all = useMemo(() => numbers(whole.steps), [whole]);
  const gap = all.length > 1 ? (all[all.length - 1]! - all[0]!) / (all.length - 1) : 1;
  const shown = range ?? { from: all[0] ?? 0, to: (all[all.length - 1] ?? 0) + gap };
  const { first, last } = data.used;
  const rows = last - first + 1 + EXTRA;

  const fill = useCallback(
    (pixels: Uint32Array, w: number, h: number): void => {
      const surface = pixel(theme === "dark" ? [21, 26, 33] : [255, 255, 255]);
      const colors = Uint32Array.from(SEQUENTIAL, (color) => pixel(color));
      const badColor = pixel(theme === "dark" ? [255, 40, 90] : [230, 0, 60]);
      pixels.fill(surface);
      for (let x = 0; x < w; x++) {
        const column = lastAtMost(data.steps, shown.from + ((x + 0.5) / w) * (shown.to - shown.from));
        if (column < 0) continue;
        for (let row = 0; row < rows; row++) {
          const share = shareAt(data, column, row, first);
          if (!(share > 0)) continue;
          const color =
            row === 0 ? badColor : colors[Math.round(Math.min(1, Math.sqrt(share / data.most)) * 255)]!;
          const bottom = h - Math.floor(edge(row, rows) * h);
          const top = h - Math.floor(edge(row + 1, rows) * h) + (row < EXTRA ? 2 : 0);
          for (let y = Math.max(0, top); y < bottom; y++) pixels[y * w + x] = color;
        }
      }
    },
    [data, theme, shown.from, shown.to, rows, first],
  );
  const xTicks = useMemo<Tick[]>(
    () =>
      linearTicks(shown.from, shown.to, Math.max(2, width / 110), true).map((step) => ({
        at: (step - shown.from) / (shown.to - shown.from),
        text: linearTickText(step),
      })),
    [shown.from, shown.to, width],
  );
  const yTicks = useMemo(() => magnitudeTicks(first, last, rows), [first, last, rows]);
  const over = useCallback(
    (context: CanvasRenderingContext2D, left: number, top: number, w: number, h: number): void => {
      context.strokeStyle = ink(theme).muted;
      context.globalAlpha = 0.5;
      context.beginPath();
      const y = Math.round(top + h - edge(EXTRA, rows) * h) + 0.5;
      context.moveTo(left, y);
      context.lineTo(left + w, y);
      context.stroke();
      context.globalAlpha = 1;
    },
    [theme, rows],
  );
  const stepAt = (x: number): number => shown.from + x * (shown.to - shown.from);
  return (
    <div ref={box} class="histogram">
      <Picture
        frame={useMemo(() => ({ width, height: HEIGHT, left: 52, bottom: 24 }), [width])}
        theme={theme}
        label={`Histogram of magnitudes at ${data.steps.length} steps, from ${text(first)} to ${text(last + 1)}`}
        xTicks={xTicks}
        yTicks={yTicks}
        fill={fill}
        over={over}
        onMove={(x, y) => setAt(x === null ? null : [x, y])}
        onPick={(x) => onPick(Math.round(stepAt(x)))}
        onSelect={(from, to) => onRange({ from: stepAt(from), to: Math.max(stepAt(from) + 2, stepAt(to)) })}
        onReset={() => onRange(null)}
      />
      <p class="legend">
        {at === null ? `${mode} step` : words(data, stepAt(at[0]), rowAt(1 - at[1], rows), first)}
      </p>
    </div>
  );
}

interface Decoded {
  readonly steps: Numbers;
  readonly shares: Numbers;
  readonly zeros: Numbers;
  readonly bad: Numbers;
  readonly bins: number;
  readonly exponent: number;
  readonly most: number; // largest share
  readonly used: { readonly first: number; readonly last: number }; // exponents that occur
}

function decoded(histogram: LogHistogram): Decoded {
  const shares = numbers(histogram.shares);
  const { bins, first_exponent: exponent } = histogram;
  let [first, last, most] = [bins, -1, 1e-9];
  shares.forEach((share, index) => {
    if (!(share > 0)) return;
    first = Math.min(first, index % bins);
    last = Math.max(last, index % bins);
    most = Math.max(most, share);
  });
  if (last < 0) [first, last] = [0, Math.max(0, bins - 1)];
  return {
    steps: numbers(histogram.steps),
    shares,
    zeros: numbers(histogram.zero_shares),
    bad: numbers(histogram.bad_shares),
    bins,
    exponent,
    most,
    used: { first: first + exponent, last: last + exponent },
  };
}

/** Share of a row of the picture: row 0 NaN and infinite, row 1 zeros, then the bins. */
function shareAt(data: Decoded, column: number, row: number, first: number): number {
  if (row === 0) return data.bad[column] ?? 0;
  if (row === 1) return data.zeros[column] ?? 0;
  return data.shares[column * data.bins + (row - EXTRA) + first - data.exponent] ?? 0;
}

function magnitudeTicks(first: number, last: number, rows: number): Tick[] {
  const ticks: Tick[] = [
    { at: edge(0.5, rows), text: "NaN, ∞" },
    { at: edge(1.5, rows), text: "0" },
  ];
  const lowest = Math.ceil(first * Math.log10(2));
  const every = Math.max(1, Math.ceil((rows * Math.log10(2)) / 8));
  for (let power = lowest; power <= (last + 1) * Math.log10(2); power++) {
    if (power % every !== 0) continue;
    const at = edge(power / Math.log10(2) - first + EXTRA, rows);
    if (at > edge(EXTRA, rows) + 0.03) ticks.push({ at, text: logTickText(10 ** power) }); // not into the label "0"
  }
  return ticks;
}

const text = (exponent: number): string => logTickText(Number((2 ** exponent).toPrecision(2)));

function words(data: Decoded, step: number, row: number, first: number): string {
  const column = lastAtMost(data.steps, step);
  if (column < 0) return "";
  const share = percent(shareAt(data, column, row, first));
  const at = stepText(data.steps[column]!, data.steps[column]!);
  if (row <= 0) return `${at}: ${share} of the elements are NaN or infinite`;
  if (row === 1) return `${at}: ${share} of the elements are 0`;
  const exponent = first + row - EXTRA;
  if (exponent === LAST_BIN)
    return `${at}: ${share} of the elements have a magnitude of ${text(exponent)} or more`;
  if (exponent === FIRST_BIN)
    return `${at}: ${share} of the elements have a magnitude below ${text(exponent + 1)}, and are not 0`;
  return `${at}: ${share} of the elements have a magnitude of ${text(exponent)} to ${text(exponent + 1)}`;
}
