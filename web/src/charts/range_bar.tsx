/** The visible steps as a part of all steps; it moves with the pointer. Hidden if all steps are visible. */
import { useRef } from "preact/hooks";
import { count } from "../data/format.ts";
import { inside, panned, type Range } from "../data/range.ts";

interface Props {
  readonly whole: Range;
  readonly range: Range | null;
  readonly onRange: (range: Range | null) => void;
}

export function RangeBar({ whole, range, onRange }: Props) {
  const track = useRef<HTMLDivElement>(null);
  const start = useRef<{ x: number; range: Range } | null>(null);
  const length = Math.max(1e-9, whole.to - whole.from);
  if (range === null) return <div class="range-bar" aria-hidden="true" />;
  const shown = inside(range, whole);
  const steps = (event: PointerEvent): number =>
    ((event.clientX - (start.current?.x ?? 0)) / (track.current?.clientWidth ?? 1)) * length;
  return (
    <div class="range-bar active" ref={track}>
      <div
        class="range-thumb"
        role="scrollbar"
        aria-label="Visible steps"
        aria-controls="main"
        aria-orientation="horizontal"
        aria-valuemin={Math.round(whole.from)}
        aria-valuemax={Math.round(whole.to)}
        aria-valuenow={Math.round(shown.from)}
        aria-valuetext={`steps ${count(shown.from)} to ${count(shown.to)}`}
        tabIndex={0}
        style={{
          left: `${(100 * (shown.from - whole.from)) / length}%`,
          width: `${(100 * (shown.to - shown.from)) / length}%`,
        }}
        onPointerDown={(event) => {
          start.current = { x: event.clientX, range: shown };
          event.currentTarget.setPointerCapture(event.pointerId);
        }}
        onPointerMove={(event) =>
          start.current !== null && onRange(panned(start.current.range, steps(event), whole))
        }
        onPointerUp={() => {
          start.current = null;
        }}
        onKeyDown={(event) => {
          const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
          if (direction !== undefined)
            onRange(panned(shown, (direction * (shown.to - shown.from)) / 5, whole));
        }}
      />
    </div>
  );
}
