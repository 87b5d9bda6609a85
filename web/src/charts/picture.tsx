/** A matrix of colours with an axis on the left and one at the bottom: histograms over time, values, matrices. */
import { useEffect, useRef } from "preact/hooks";
import { ink, type Theme } from "../theme.ts";

export interface Tick {
  readonly at: number; // 0 to 1, from the left or from the bottom
  readonly text: string;
}

export interface Frame {
  readonly width: number; // of the whole canvas, in CSS pixels
  readonly height: number;
  readonly left: number; // margins
  readonly bottom: number;
}

interface Props {
  readonly frame: Frame;
  readonly theme: Theme;
  readonly label: string;
  readonly xTicks: readonly Tick[];
  readonly yTicks: readonly Tick[];
  /** Fill the pixels of the inner part, `width` x `height` in device pixels. */
  readonly fill: (pixels: Uint32Array, width: number, height: number) => void;
  readonly over?: (
    context: CanvasRenderingContext2D,
    left: number,
    top: number,
    width: number,
    height: number,
  ) => void;
  readonly onMove?: (x: number | null, y: number) => void; // shares of the inner part, y from the top
  readonly onPick?: (x: number, y: number) => void;
  readonly onSelect?: (from: number, to: number) => void; // a horizontal drag
  readonly onReset?: () => void;
  readonly class?: string;
}

const TOP = 6;
const RIGHT = 10;

export function Picture(props: Props) {
  const { frame, theme, fill, xTicks, yTicks, over } = props;
  const ref = useRef<HTMLCanvasElement>(null);
  const down = useRef<number | null>(null);
  const inner = {
    width: Math.max(1, frame.width - frame.left - RIGHT),
    height: Math.max(1, frame.height - frame.bottom - TOP),
  };

  useEffect(() => {
    const canvas = ref.current;
    if (canvas === null || frame.width === 0) return;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(frame.width * ratio);
    canvas.height = Math.round(frame.height * ratio);
    canvas.style.width = `${frame.width}px`;
    canvas.style.height = `${frame.height}px`;
    const context = canvas.getContext("2d");
    if (context === null) return;
    const colors = ink(theme);
    context.fillStyle = colors.surface;
    context.fillRect(0, 0, canvas.width, canvas.height);
    const [width, height] = [Math.round(inner.width * ratio), Math.round(inner.height * ratio)];
    const image = context.createImageData(width, height);
    fill(new Uint32Array(image.data.buffer), width, height);
    context.putImageData(image, Math.round(frame.left * ratio), Math.round(TOP * ratio));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colors.muted;
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const tick of xTicks)
      context.fillText(tick.text, frame.left + tick.at * inner.width, TOP + inner.height + 6);
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const tick of yTicks)
      context.fillText(tick.text, frame.left - 6, TOP + (1 - tick.at) * inner.height);
    over?.(context, frame.left, TOP, inner.width, inner.height);
  }, [frame, theme, fill, xTicks, yTicks, over, inner.width, inner.height]);

  const share = (event: MouseEvent): [number, number] => [
    Math.max(0, Math.min(1, (event.offsetX - frame.left) / inner.width)),
    Math.max(0, Math.min(1, (event.offsetY - TOP) / inner.height)),
  ];
  return (
    <canvas
      ref={ref}
      class={props.class}
      role="img"
      aria-label={props.label}
      onPointerMove={(event) => {
        const inside = event.offsetX >= frame.left && event.offsetX <= frame.left + inner.width;
        const [x, y] = share(event);
        props.onMove?.(inside ? x : null, y);
      }}
      onPointerLeave={() => props.onMove?.(null, 0)}
      onPointerDown={(event) => {
        down.current = event.offsetX;
        event.currentTarget.setPointerCapture(event.pointerId);
      }}
      onPointerUp={(event) => {
        const from = down.current;
        down.current = null;
        if (from === null) return;
        const [x, y] = share(event);
        const start = Math.max(0, Math.min(1, (from - frame.left) / inner.width));
        if (Math.abs(event.offsetX - from) < 5) props.onPick?.(x, y);
        else props.onSelect?.(Math.min(start, x), Math.max(start, x));
      }}
      onDblClick={() => props.onReset?.()}
    />
  );
}
