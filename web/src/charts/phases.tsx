/** Mean times of the phases of steps, stacked. */
import { useCallback, useMemo, useState } from "preact/hooks";
import type { PhaseTimes } from "../contract.ts";
import { lastAtMost, numbers } from "../data/decode.ts";
import { number, steps as stepText } from "../data/format.ts";
import type { Range } from "../data/range.ts";
import { linearTicks, linearTickText } from "../data/ticks.ts";
import { useApp, useSize } from "../state.ts";
import { seriesColor } from "../theme.ts";
import { Picture, type Tick } from "./picture.tsx";

const HEIGHT = 200;

export function PhaseChart({ times, range }: { readonly times: PhaseTimes; readonly range: Range | null }) {
  const { theme } = useApp();
  const [box, width] = useSize<HTMLDivElement>();
  const [at, setAt] = useState<number | null>(null);
  const steps = useMemo(() => numbers(times.steps), [times]);
  const values = useMemo(() => numbers(times.milliseconds), [times]);
  const top = useMemo(() => highest(steps.length, times.phases.length, values), [steps, values, times]);
  const [first, last] = [steps[0] ?? 0, steps[steps.length - 1] ?? 0];
  const gap = steps.length > 1 ? (last - first) / (steps.length - 1) : 1; // the bar of the last step ends after it
  const shown = range ?? { from: first, to: last + gap };
  const over = useCallback(
    (context: CanvasRenderingContext2D, left: number, up: number, w: number, h: number): void => {
      const column = (x: number): number =>
        Math.max(0, lastAtMost(steps, shown.from + (x / w) * (shown.to - shown.from)));
      for (let x = 0; x < w; x++) {
        let base = up + h;
        const at = column(x + 0.5);
        times.phases.forEach((_, phase) => {
          const value = values[phase * steps.length + at] ?? 0;
          if (!(value > 0)) return;
          const height = (value / top) * h;
          context.fillStyle = seriesColor(theme, phase);
          context.fillRect(left + x, base - height, 1.02, height);
          base -= height;
        });
      }
    },
    [steps, values, top, theme, shown.from, shown.to, times],
  );
  const fill = useCallback(
    (pixels: Uint32Array): void => {
      pixels.fill(theme === "dark" ? 0xff211a15 : 0xffffffff);
    },
    [theme],
  );
  const xTicks = useMemo<Tick[]>(
    () =>
      linearTicks(shown.from, shown.to, Math.max(2, width / 110), true).map((step) => ({
        at: (step - shown.from) / (shown.to - shown.from),
        text: linearTickText(step),
      })),
    [shown.from, shown.to, width],
  );
  const yTicks = useMemo<Tick[]>(
    () => linearTicks(0, top, 4).map((tick) => ({ at: tick / top, text: linearTickText(tick) })),
    [top],
  );
  const column = at === null ? -1 : Math.max(0, lastAtMost(steps, shown.from + at * (shown.to - shown.from)));
  return (
    <div ref={box} class="histogram">
      <Picture
        frame={useMemo(() => ({ width, height: HEIGHT, left: 52, bottom: 24 }), [width])}
        theme={theme}
        fill={fill}
        over={over}
        label={`Mean time of the phases of ${times.mode} steps in milliseconds`}
        xTicks={xTicks}
        yTicks={yTicks}
        onMove={setAt}
      />
      <p class="legend">
        {column < 0
          ? "milliseconds per step"
          : `${stepText(steps[column]!, steps[column]!)}: ${times.phases.map((phase, index) => `${phase.replaceAll("_", " ")} ${number(values[index * steps.length + column])} ms`).join(" · ")}`}
      </p>
    </div>
  );
}

/** Upper end of the axis: the largest sum of a column, without the largest 1 %. */
function highest(columns: number, phases: number, values: ArrayLike<number>): number {
  const sums = Array.from({ length: columns }, (_, column) => {
    let sum = 0;
    for (let phase = 0; phase < phases; phase++) {
      const value = values[phase * columns + column] ?? 0;
      if (value > 0) sum += value;
    }
    return sum;
  }).sort((a, b) => a - b);
  const most = sums[Math.max(0, Math.ceil(sums.length * 0.99) - 1)] ?? 0;
  return most > 0 ? most * 1.08 : 1;
}
