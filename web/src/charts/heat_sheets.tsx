/** A heat map on paper: all rows, on as many sheets as they need. */
import { useLayoutEffect, useRef } from "preact/hooks";
import { count } from "../data/format.ts";
import { drawHeat, type Heat, PLOT } from "./heat_draw.ts";

const WIDTH = 700; // of a page, in CSS pixels
const HEIGHT = 900;
const ROW = 11; // height of a row with a name of its own
const MOST_SHEETS = 12; // rows of more tensors are lower

/** Shown rows of each sheet: first row, and row after the last one. */
export function sheetsOf(rows: number): readonly (readonly [number, number])[] {
  const fits = Math.floor((HEIGHT - PLOT.top - PLOT.bottom) / ROW);
  const sheets = Math.min(MOST_SHEETS, Math.ceil(rows / fits));
  const each = Math.ceil(rows / Math.max(1, sheets));
  return Array.from({ length: sheets }, (_, at) => [at * each, Math.min(rows, (at + 1) * each)] as const);
}

/** heat: the picture of the screen. */
export function HeatSheets({ heat }: { readonly heat: Heat }) {
  const sheets = sheetsOf(heat.rowsShown.length);
  return (
    <>
      {sheets.map(([first, end], index) => (
        <figure class="heat-sheet" key={first}>
          <Sheet heat={heat} first={first} end={end} />
          {sheets.length > 1 && (
            <figcaption class="muted">
              Part {index + 1} of {sheets.length}: tensors {count(first + 1)} to {count(end)} of{" "}
              {count(heat.rowsShown.length)}
            </figcaption>
          )}
        </figure>
      ))}
    </>
  );
}

function Sheet({ heat, first, end }: { readonly heat: Heat; readonly first: number; readonly end: number }) {
  const ref = useRef<HTMLCanvasElement>(null);
  // Printing does not wait for effects after the layout.
  useLayoutEffect(() => {
    if (ref.current === null) return;
    const margins = PLOT.top + PLOT.bottom;
    const rowHeight = Math.min(ROW, (HEIGHT - margins) / Math.max(1, end - first));
    drawHeat(ref.current, {
      ...heat,
      rowsShown: heat.rowsShown.slice(first, end),
      names: heat.names.slice(first, end),
      rowHeight,
      scrollTop: 0,
      width: WIDTH,
      height: Math.ceil(rowHeight * (end - first)) + margins,
    });
  }, [heat, first, end]);
  return <canvas ref={ref} role="img" aria-label={`Tensors ${first + 1} to ${end}`} />;
}
