/** Line chart on canvas (uPlot): zoom by drag and wheel, values at the cursor in the legend, findings as marks. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { number } from "../data/format.ts";
import { panned, type Range, same, zoomed } from "../data/range.ts";
import { useApp, useSize } from "../state.ts";
import { aligned, type Series, suitsLog } from "./lines_data.ts";
import { Legend, unnamed } from "./lines_legend.tsx";
import { type LinesProps, options } from "./lines_plot.ts";

export function Lines(props: LinesProps) {
  const { theme } = useApp();
  const [box, width] = useSize<HTMLDivElement>();
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [cursor, setCursor] = useState<number | null>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const { series, height = 220 } = props;
  const suits = useMemo(() => suitsLog(series), [series]);
  const log = props.y === "log" || (props.y !== "linear" && suits);
  const text = useMemo(() => summary(props.label, series), [props.label, series]);
  const data = useMemo(() => aligned(series, log), [series, log]);
  const whole = useMemo<Range>(
    () => ({ from: data.steps[0] ?? 0, to: data.steps[data.steps.length - 1] ?? 1 }),
    [data],
  );
  const structure = series.map((each) => [
    each.label,
    each.color,
    each.low !== undefined,
    each.dash,
    each.width,
  ]);
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
      const next = shown.to > shown.from ? shown : { from: shown.from - 1, to: shown.to + 1 };
      made.setScale("x", { min: next.from, max: next.to });
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
    <figure class={`chart ${unnamed(series) ? "unnamed" : ""}`}>
      <div
        class="chart-box"
        ref={box}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: the keys zoom and pan.
        tabIndex={0}
        role="img"
        aria-label={text}
        onKeyDown={move}
      >
        <div ref={host} />
      </div>
      {props.legend !== false && (
        <Legend
          series={series}
          steps={data.steps}
          columns={data.columns}
          cursor={cursor}
          hidden={hidden}
          xText={props.xText}
          unit={props.unit ?? ""}
          onToggle={(label) => setHidden(toggled(hidden, label))}
        />
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
