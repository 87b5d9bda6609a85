/** Saved values of a tensor at one step, as an image, a heat map, a line or a number. */
import { useCallback, useMemo, useState } from "preact/hooks";
import { type Pixels, patternPixel, pixelsOf } from "../charts/heat_paint.ts";
import { Lines } from "../charts/lines.tsx";
import { Picture } from "../charts/picture.tsx";
import type { TensorPage, Value } from "../contract.ts";
import { scale as makeScale, type Scale } from "../data/colors.ts";
import { extent, type Numbers, numbers } from "../data/decode.ts";
import { count, counted, number, shape } from "../data/format.ts";
import { setParameters, useAnswer, useApp, useSize } from "../state.ts";
import { seriesColor } from "../theme.ts";
import { Disclosure, Empty, Panel, Scroll } from "./controls.tsx";

export function ValuePanel({ page }: { readonly page: TensorPage }) {
  const app = useApp();
  const steps = page.saved_steps.filter((each) =>
    app.source.has("value", {
      run: app.run,
      name: page.tensor.name,
      mode: each.mode,
      step: String(each.mode_step),
      worker: page.worker,
    }),
  );
  if (page.saved_steps.length === 0) {
    return (
      <Panel title="Values">
        <Empty>The run stores statistics of this tensor and no values.</Empty>
      </Panel>
    );
  }
  if (steps.length === 0) {
    return (
      <Panel title="Values">
        <Empty>This report does not contain the values. Open the run with `tdcore view` to see them.</Empty>
      </Panel>
    );
  }
  const wanted = Number(app.route.parameters.step ?? Number.NaN);
  const at = Number.isFinite(wanted)
    ? nearest(
        steps.map((each) => each.mode_step),
        wanted,
      )
    : steps.length - 1;
  const step = steps[at]!;
  const set = (index: number): void => setParameters(app, { step: String(steps[index]!.mode_step) });
  return (
    <Panel title="Values" note={step.text}>
      {steps.length > 1 && (
        <label class="step-slider">
          <span class="hidden">Saved step</span>
          <input
            type="range"
            min="0"
            max={steps.length - 1}
            value={at}
            aria-valuetext={step.text}
            onInput={(event) => set(Number(event.currentTarget.value))}
          />
          <span class="muted">
            {count(at + 1)} of {count(steps.length)}
          </span>
        </label>
      )}
      <ValueContent page={page} mode={step.mode} step={step.mode_step} />
    </Panel>
  );
}

/** Index of the step that is nearest to `wanted`. */
export function nearest(steps: readonly number[], wanted: number): number {
  let best = 0;
  steps.forEach((step, index) => {
    if (Math.abs(step - wanted) < Math.abs(steps[best]! - wanted)) best = index;
  });
  return best;
}

function ValueContent({
  page,
  mode,
  step,
}: {
  readonly page: TensorPage;
  readonly mode: string;
  readonly step: number;
}) {
  const app = useApp();
  const { data, error } = useAnswer<Value>(
    "value",
    { run: app.run, name: page.tensor.name, mode, step: String(step), worker: page.worker },
    [],
  );
  if (data === null) return <Empty>{error === "" ? "Reading the values …" : error}</Empty>;
  if (data.text !== "") return <Empty>{data.text}</Empty>;
  return <Shown value={data} />;
}

function Shown({ value }: { readonly value: Value }) {
  const { theme } = useApp();
  const data = useMemo(() => numbers(value.data), [value]);
  const range = useMemo(() => extent(data), [data]);
  const line = useMemo(
    () =>
      value.form === "line"
        ? [
            {
              label: "",
              color: seriesColor(theme, 0),
              step: Float64Array.from({ length: data.length }, (_, index) => index),
              value: data,
              bad: data.map((each) => (Number.isFinite(each) ? 0 : 1)),
            },
          ]
        : [],
    [value, data, theme],
  );
  const facts = [
    shape(value.shape),
    value.dtype,
    value.shown,
    range === null ? "no finite element" : `${number(range[0])} to ${number(range[1])}`,
  ].filter((each) => each !== "");
  return (
    <>
      {value.form === "number" && <p class="big-number">{number(data[0])}</p>}
      {value.form === "line" && (
        <Lines
          label={`Values of ${value.name}`}
          series={line}
          y="linear"
          height={190}
          xLabel="element"
          xText={(index) => `element ${count(index)}`}
        />
      )}
      {(value.form === "heatmap" || value.form === "image") && (
        <Matrix value={value} data={data} range={range ?? [0, 1]} />
      )}
      <p class="muted">
        {facts.join(" · ")}
        {value.bad > 0 && (
          <b class="bad"> · {counted(value.bad, "element is", "elements are")} NaN or infinite</b>
        )}
      </p>
      {value.form !== "number" && (
        <Disclosure summary="Values as a table">{() => <ValueTable value={value} data={data} />}</Disclosure>
      )}
    </>
  );
}

interface MatrixProps {
  readonly value: Value;
  readonly data: Numbers;
  readonly range: readonly [number, number];
}

const NO_TICKS: readonly never[] = [];

function Matrix({ value, data, range }: MatrixProps) {
  const { theme } = useApp();
  const [box, width] = useSize<HTMLDivElement>();
  const [at, setAt] = useState<readonly [number, number] | null>(null);
  const size = Math.max(1, Math.min((width - 18) / value.width, 340 / value.height, 26));
  const frame = useMemo(
    () => ({
      width: Math.min(width, Math.round(size * value.width) + 18),
      height: Math.round(size * value.height) + 8,
      left: 0,
      bottom: 2,
    }),
    [width, size, value.width, value.height],
  );
  const scale = useMemo(
    () => makeScale(value.form === "image" || range[0] >= 0 ? "linear" : "diverging", range),
    [value.form, range[0], range[1]],
  );
  const fill = useCallback(
    (pixels: Uint32Array, w: number, h: number) =>
      fillValues(pixels, w, h, value, data, scale, pixelsOf(theme, scale)),
    [value, data, scale, theme],
  );
  const cell =
    at === null
      ? null
      : [
          Math.min(value.height - 1, Math.floor(at[1] * value.height)),
          Math.min(value.width - 1, Math.floor(at[0] * value.width)),
        ];
  const index = cell === null ? -1 : (cell[0]! * value.width + cell[1]!) * value.channels;
  return (
    <div ref={box} class="matrix">
      <Picture
        frame={frame}
        theme={theme}
        label={`Values of ${value.name}, ${value.height} x ${value.width}, from ${number(range[0])} to ${number(range[1])}`}
        xTicks={NO_TICKS}
        yTicks={NO_TICKS}
        fill={fill}
        onMove={(x, y) => setAt(x === null ? null : [x, y])}
      />
      <p class="legend">
        {cell === null
          ? ""
          : `row ${cell[0]}, column ${cell[1]}: ${Array.from(data.slice(index, index + value.channels), (each) => number(each)).join(", ")}`}
      </p>
    </div>
  );
}

/** Colour every pixel by its element; elements that are NaN or infinite get their patterns. */
function fillValues(
  target: Uint32Array,
  w: number,
  h: number,
  value: Value,
  data: Numbers,
  scale: Scale,
  pixels: Pixels,
): void {
  const gray = value.form === "image";
  for (let y = 0; y < h; y++) {
    const row = Math.floor((y * value.height) / h);
    for (let x = 0; x < w; x++) {
      const at = (row * value.width + Math.floor((x * value.width) / w)) * value.channels;
      const first = data[at]!;
      if (Number.isNaN(first)) target[y * w + x] = patternPixel(1, x, y, pixels);
      else if (!Number.isFinite(first)) target[y * w + x] = patternPixel(2, x, y, pixels);
      else if (gray) {
        const level = (channel: number): number => Math.round(scale.at(data[at + channel]!) * 255);
        const [red, green, blue] =
          value.channels === 3 ? [level(0), level(1), level(2)] : [level(0), level(0), level(0)];
        target[y * w + x] = ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
      } else target[y * w + x] = pixels.values[Math.round(scale.at(first) * (pixels.values.length - 1))]!;
    }
  }
}

const MOST_ROWS = 64;
const MOST_COLUMNS = 32;

function ValueTable({ value, data }: { readonly value: Value; readonly data: Numbers }) {
  const rows = Math.min(value.height, MOST_ROWS);
  const columns = Math.min(value.width, MOST_COLUMNS);
  const part =
    rows < value.height || columns < value.width
      ? `The first ${rows} x ${columns} of ${value.height} x ${value.width} elements`
      : "";
  return (
    <Scroll label="Values">
      {part !== "" && <p class="muted">{part}</p>}
      <table class="values">
        <thead>
          <tr>
            <td />
            {Array.from({ length: columns }, (_, column) => (
              <th class="num" key={column}>
                {column}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {Array.from({ length: rows }, (_, row) => (
            <tr key={row}>
              <th class="num">{row}</th>
              {Array.from({ length: columns }, (_, column) => {
                const each = data[(row * value.width + column) * value.channels]!;
                return (
                  <td class={`num ${Number.isFinite(each) ? "" : "bad"}`} key={column}>
                    {number(each)}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
