/** Colour scale of a heat map, and the patterns of its special cells. */
import { useEffect, useRef } from "preact/hooks";
import type { Statistic } from "../contract.ts";
import { colorAt, pixel, type Scale, table } from "../data/colors.ts";
import { number, percent } from "../data/format.ts";
import { useApp } from "../state.ts";
import { patternPixel, pixelsOf } from "./heat_paint.ts";

const WIDTH = 220;
const HEIGHT = 12;

export function ColorBar({ scale, statistic }: { readonly scale: Scale; readonly statistic: Statistic }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    const image = context.createImageData(WIDTH, 1);
    const colors = table(scale.kind);
    new Uint32Array(image.data.buffer).set(
      Uint32Array.from({ length: WIDTH }, (_, x) => pixel(colorAt(colors, x / (WIDTH - 1)))),
    );
    for (let y = 0; y < HEIGHT; y++) context.putImageData(image, 0, y);
  }, [scale]);
  const text = scale.kind === "share" ? percent : number;
  const middle = scale.value(0.5);
  return (
    <div class="color-bar">
      <span class="color-title">
        {statistic.label}
        {scale.kind === "log" && <span class="muted"> log</span>}
      </span>
      <span class="muted">{text(scale.low)}</span>
      <canvas
        ref={canvas}
        width={WIDTH}
        height={HEIGHT}
        role="img"
        aria-label={`Colours from ${text(scale.low)} (dark) to ${text(scale.high)} (light), in the middle ${text(middle)}`}
      />
      <span class="muted">{text(scale.high)}</span>
      <Swatch pattern={1} label="NaN" />
      <Swatch pattern={2} label="∞" />
      <Swatch pattern={4} label="no value" />
      <Swatch pattern={3} label="lost" />
    </div>
  );
}

/** A sample of a pattern. */
function Swatch({ pattern, label }: { readonly pattern: number; readonly label: string }) {
  const { theme } = useApp();
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    const [width, height] = [20, HEIGHT];
    const pixels = pixelsOf(theme, { kind: "linear", low: 0, high: 1, at: () => 0, value: () => 0 });
    const image = context.createImageData(width, height);
    const target = new Uint32Array(image.data.buffer);
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) target[y * width + x] = patternPixel(pattern, x, y, pixels);
    }
    context.putImageData(image, 0, 0);
  }, [pattern, theme]);
  return (
    <span class="swatch">
      <canvas ref={canvas} width="20" height={HEIGHT} aria-hidden="true" /> {label}
    </span>
  );
}
