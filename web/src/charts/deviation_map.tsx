/** Workers by steps: the deviation of each worker from the median, in diverging colours. */
import { useCallback, useMemo, useState } from "preact/hooks";
import type { Ranks } from "../contract.ts";
import { DIVERGING, pixel } from "../data/colors.ts";
import { lastAtMost, numbers } from "../data/decode.ts";
import { number, steps as stepText } from "../data/format.ts";
import type { Range } from "../data/range.ts";
import { linearTicks, linearTickText } from "../data/ticks.ts";
import { useApp, useSize } from "../state.ts";
import { patternPixel, pixelsOf } from "./heat_paint.ts";
import { Picture, type Tick } from "./picture.tsx";

const LIMIT = 6; // deviations at the ends of the colours

interface Props {
  readonly data: Ranks;
  readonly range: Range | null;
  readonly onRange: (range: Range | null) => void;
}

export function DeviationMap({ data, range, onRange }: Props) {
  const { theme } = useApp();
  const [box, width] = useSize<HTMLDivElement>();
  const [at, setAt] = useState<readonly [number, number] | null>(null);
  const steps = useMemo(() => numbers(data.steps), [data]);
  const deviations = useMemo(() => numbers(data.deviations), [data]);
  const shown = range ?? {
    from: steps[0] ?? 0,
    to: Math.max((steps[0] ?? 0) + 1, steps[steps.length - 1] ?? 1),
  };
  const rows = data.workers.length;
  const fill = useCallback(
    (target: Uint32Array, w: number, h: number): void => {
      const scale = { kind: "diverging" as const, low: -LIMIT, high: LIMIT, at: () => 0, value: () => 0 };
      const pixels = pixelsOf(theme, scale);
      const colors = Uint32Array.from(DIVERGING, (color) => pixel(color));
      for (let x = 0; x < w; x++) {
        const column = Math.max(0, lastAtMost(steps, shown.from + ((x + 0.5) / w) * (shown.to - shown.from)));
        for (let y = 0; y < h; y++) {
          const value = deviations[Math.floor((y * rows) / h) * steps.length + column]!;
          const share = (Math.max(-LIMIT, Math.min(LIMIT, value)) + LIMIT) / (2 * LIMIT);
          target[y * w + x] = Number.isNaN(value)
            ? patternPixel(4, x, y, pixels)
            : colors[Math.round(share * 255)]!;
        }
      }
    },
    [steps, deviations, theme, shown.from, shown.to, rows],
  );
  const xTicks = useMemo<Tick[]>(
    () =>
      linearTicks(shown.from, shown.to, Math.max(2, width / 110), true).map((step) => ({
        at: (step - shown.from) / (shown.to - shown.from),
        text: linearTickText(step),
      })),
    [shown.from, shown.to, width],
  );
  const height = Math.min(420, Math.max(60, rows * 24)) + 30;
  const yTicks = useMemo<Tick[]>(() => {
    const every = Math.ceil((rows * 13) / height);
    return data.workers.flatMap((worker, row) =>
      row % every === 0 ? [{ at: 1 - (row + 0.5) / rows, text: worker }] : [],
    );
  }, [data, rows, height]);
  const stepAt = (x: number): number => shown.from + x * (shown.to - shown.from);
  return (
    <div ref={box} class="histogram">
      <Picture
        frame={useMemo(() => ({ width, height, left: 130, bottom: 24 }), [width, height])}
        theme={theme}
        fill={fill}
        label={`Deviation of ${rows} workers from their median. ${data.outliers.map((each) => `${each.worker} at ${each.at.text}: ${number(each.deviation)}`).join("; ")}`}
        xTicks={xTicks}
        yTicks={yTicks}
        onMove={(x, y) => setAt(x === null ? null : [x, y])}
        onSelect={(from, to) => onRange({ from: stepAt(from), to: Math.max(stepAt(from) + 2, stepAt(to)) })}
        onReset={() => onRange(null)}
      />
      <p class="legend">
        {at === null
          ? `${data.mode} step · blue: below the median, orange: above`
          : words(data, stepAt(at[0]), Math.floor(at[1] * rows))}
      </p>
    </div>
  );
}

function words(data: Ranks, step: number, row: number): string {
  const steps = numbers(data.steps);
  const column = Math.max(0, lastAtMost(steps, step));
  const worker = data.workers[Math.min(row, data.workers.length - 1)] ?? "";
  const at = Math.min(row, data.workers.length - 1) * steps.length + column;
  return `${worker}, ${stepText(steps[column]!, steps[column]!)}: ${number(numbers(data.values)[at])}, deviation ${number(numbers(data.deviations)[at])}`;
}
