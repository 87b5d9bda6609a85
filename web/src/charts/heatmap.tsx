/** Heat map of tensors by steps, on canvas. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Layers } from "../contract.ts";
import type { Scale } from "../data/colors.ts";
import { panned, type Range, same, zoomed } from "../data/range.ts";
import { useApp, useSize, useStable } from "../state.ts";
import { drawHeat, drawOverlay, type Heat, type Hover, outlineAt, PLOT, placeAt } from "./heat_draw.ts";
import { HeatSheets } from "./heat_sheets.tsx";
import { Tile } from "./heat_tile.ts";
import { HeatTip } from "./heat_tip.tsx";

interface Props {
  readonly whole: Layers; // all steps
  readonly detail: Layers | null; // the visible steps, more finely
  readonly rowsShown: readonly number[]; // rows of the answer, in this order
  readonly scale: Scale;
  readonly range: Range | null;
  readonly rowHeight: number | null; // null: all rows fit
  readonly label: string;
  readonly onRange: (range: Range | null) => void;
  readonly onRowHeight: (height: number | null) => void;
  readonly onOpen: (name: string, step: number) => void;
}

const MOST_ROW = 32;
const DOUBLE_CLICK_MS = 250;
const FIT_ROW = 24; // height of few rows

export function Heatmap(props: Props) {
  const { theme, printing } = useApp();
  const { whole, detail, rowsShown, scale } = props;
  const [box, width, height] = useSize<HTMLDivElement>();
  const scroller = useRef<HTMLDivElement>(null);
  const base = useRef<HTMLCanvasElement>(null);
  const overlay = useRef<HTMLCanvasElement>(null);
  const [scrollTop, setScrollTop] = useState(0);
  const [hover, setHover] = useState<Hover | null>(null);
  const [drag, setDrag] = useState<{ from: number; to: number } | null>(null); // x of a selection
  const click = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => () => clearTimeout(click.current), []);
  const gesture = useRef<{
    x: number;
    y: number;
    pan: boolean;
    moved: boolean;
    range: Range;
    top: number;
  } | null>(null);

  const wholeTile = useMemo(() => new Tile(whole), [whole]);
  const detailTile = useMemo(() => (detail === null ? null : new Tile(detail)), [detail]);
  const full = wholeTile.range;
  const { from, to } = props.range ?? full;
  const range = useMemo<Range>(() => ({ from, to }), [from, to]);
  const plotWidth = Math.max(1, width - PLOT.left - PLOT.right);
  const plotHeight = Math.max(1, height - PLOT.top - PLOT.bottom);
  const fit = Math.min(FIT_ROW, plotHeight / Math.max(1, rowsShown.length));
  const rowHeight = props.rowHeight ?? fit;
  const content = rowHeight * rowsShown.length;
  const wanted = (props.rowHeight ?? FIT_ROW) * rowsShown.length + PLOT.top + PLOT.bottom + 2;

  const names = useMemo(() => rowsShown.map((row) => whole.rows[row]!.name), [whole, rowsShown]);
  const heat = useStable<Heat>({
    answer: whole,
    detail,
    wholeTile,
    detailTile,
    rowsShown,
    names,
    scale,
    theme,
    range,
    rowHeight,
    scrollTop,
    width,
    height,
  });

  useEffect(() => {
    if (base.current !== null && width > 0) drawHeat(base.current, heat);
  }, [heat, width]);

  useEffect(() => {
    if (overlay.current !== null && width > 0) drawOverlay(overlay.current, heat, hover, drag);
  }, [heat, hover, drag, width]);

  const show = (next: Range): void => props.onRange(same(next, full) ? null : next);
  const pan = (steps: number): void => show(panned(range, steps, full));
  const zoom = (factor: number, center: number): void => show(zoomed(range, factor, center, full));
  const setHeight = (value: number): void => {
    const next = Math.max(fit, Math.min(MOST_ROW, value));
    const at = hover === null ? scrollTop / rowHeight : hover.line;
    props.onRowHeight(next <= fit ? null : next);
    if (scroller.current !== null) {
      const offset = hover === null ? 0 : hover.line * rowHeight - scrollTop;
      const target = at * next - offset;
      requestAnimationFrame(() => scroller.current?.scrollTo(0, target));
    }
  };

  const onWheel = (event: WheelEvent): void => {
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const closer = event.ctrlKey || event.metaKey;
    if (event.altKey) {
      event.preventDefault();
      setHeight(rowHeight * Math.exp(-event.deltaY * 0.003));
    } else if (sideways) {
      event.preventDefault();
      pan(((event.deltaX || event.deltaY) / plotWidth) * (range.to - range.from));
    } else if (closer || content <= plotHeight + 1) {
      event.preventDefault();
      const at = placeAt(heat, event.offsetX, event.offsetY);
      zoom(Math.exp(Math.max(-80, Math.min(80, event.deltaY)) * 0.003), at.step);
    }
  };

  // A wheel listener has to be active to keep the page from scrolling.
  const wheel = useRef(onWheel);
  wheel.current = onWheel;
  useEffect(() => {
    const element = overlay.current;
    const listener = (event: WheelEvent): void => wheel.current(event);
    element?.addEventListener("wheel", listener, { passive: false });
    return () => element?.removeEventListener("wheel", listener);
  }, []);

  const onPointerDown = (event: PointerEvent): void => {
    if (event.button > 1) return;
    gesture.current = {
      x: event.offsetX,
      y: event.offsetY,
      pan: event.shiftKey || event.button === 1,
      moved: false,
      range,
      top: scrollTop,
    };
    overlay.current?.setPointerCapture(event.pointerId);
  };
  const onPointerMove = (event: PointerEvent): void => {
    const start = gesture.current;
    if (start === null) {
      setHover(placeAt(heat, event.offsetX, event.offsetY).hover);
      return;
    }
    const [dx, dy] = [event.offsetX - start.x, event.offsetY - start.y];
    if (!start.moved && Math.hypot(dx, dy) < 4) return;
    start.moved = true;
    if (start.pan) {
      const steps = (-dx / plotWidth) * (start.range.to - start.range.from);
      show(panned(start.range, steps, full));
      scroller.current?.scrollTo(0, start.top - dy);
    } else {
      setHover(null);
      setDrag({ from: start.x, to: event.offsetX });
    }
  };
  const onPointerUp = (event: PointerEvent): void => {
    const start = gesture.current;
    gesture.current = null;
    setDrag(null);
    if (start === null) return;
    if (!start.moved) {
      const found =
        placeAt(heat, event.offsetX, event.offsetY).hover ??
        placeAt(heat, PLOT.left + 1, event.offsetY).hover;
      if (found === null) return;
      const open = (): void => props.onOpen(whole.rows[found.row]!.name, found.cell?.first ?? range.from);
      // If not all steps are visible, the click may be the first one of a double click.
      if (props.range === null) open();
      else click.current ??= setTimeout(open, DOUBLE_CLICK_MS);
    } else if (!start.pan && Math.abs(event.offsetX - start.x) >= 6) {
      const ends = [placeAt(heat, start.x, 0).step, placeAt(heat, event.offsetX, 0).step].sort(
        (a, b) => a - b,
      );
      show({ from: ends[0]!, to: Math.max(ends[1]!, ends[0]! + 2) });
    }
  };

  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const length = range.to - range.from;
    const center = hover?.cell?.first ?? (range.from + range.to) / 2;
    const keys: Record<string, () => void> = {
      "+": () => zoom(0.6, center),
      "=": () => zoom(0.6, center),
      "-": () => zoom(1 / 0.6, center),
      "0": () => props.onRange(null),
      "[": () => setHeight(rowHeight / 1.4),
      "]": () => setHeight(rowHeight * 1.4),
      ArrowUp: () => moveCursor(-1, 0),
      ArrowDown: () => moveCursor(1, 0),
      ArrowLeft: () => (event.shiftKey ? pan(-length / 5) : moveCursor(0, -1)),
      ArrowRight: () => (event.shiftKey ? pan(length / 5) : moveCursor(0, 1)),
      Home: () => scroller.current?.scrollTo(0, 0),
      End: () => scroller.current?.scrollTo(0, content),
      PageDown: () => scroller.current?.scrollBy(0, plotHeight),
      PageUp: () => scroller.current?.scrollBy(0, -plotHeight),
      Escape: () => setHover(null),
      Enter: () =>
        hover !== null && props.onOpen(whole.rows[hover.row]!.name, hover.cell?.first ?? range.from),
    };
    const action = keys[event.key];
    if (action === undefined) return;
    event.preventDefault();
    action();
  };

  const moveCursor = (rows: number, columns: number): void => {
    const tile = detailTile ?? wholeTile;
    const line = Math.max(
      0,
      Math.min(rowsShown.length - 1, (hover?.line ?? Math.floor(scrollTop / rowHeight) - (rows || 1)) + rows),
    );
    const now =
      hover?.cell === undefined || hover.cell === null
        ? tile.columnAt(range.from) - columns
        : tile.columnAt(hover.cell.first);
    const column = Math.max(0, Math.min(tile.columns - 1, now + columns));
    const row = rowsShown[line];
    if (row === undefined) return;
    const top = line * rowHeight;
    if (top < scrollTop) scroller.current?.scrollTo(0, top);
    if (top + rowHeight > scrollTop + plotHeight) scroller.current?.scrollTo(0, top + rowHeight - plotHeight);
    const extent = tile.extent(column);
    if (extent.from < range.from) pan(extent.from - range.from);
    if (extent.to > range.to) pan(extent.to - range.to);
    const x =
      PLOT.left + (((extent.from + extent.to) / 2 - range.from) / (range.to - range.from)) * plotWidth;
    setHover({
      line,
      row,
      cell: tile.columns === 0 ? null : tile.cell(row, column),
      x,
      y: PLOT.top + top + rowHeight - scrollTop,
    });
  };

  const finding = hover === null ? null : outlineAt(heat, hover);
  return (
    <>
      <div
        class={`heat ${printing ? "off" : ""}`}
        ref={box}
        style={{ maxHeight: `${Math.max(120, wanted)}px` }}
      >
        <div
          class="heat-scroll"
          ref={scroller}
          onScroll={(event) => setScrollTop(event.currentTarget.scrollTop)}
        >
          <div style={{ height: `${Math.max(height, content + PLOT.top + PLOT.bottom)}px` }}>
            <div class="heat-sticky" style={{ height: `${height}px` }}>
              <canvas ref={base} aria-hidden="true" />
              <canvas
                ref={overlay}
                class="heat-overlay"
                tabIndex={0}
                role="img"
                aria-label={props.label}
                aria-describedby="heat-tip"
                onKeyDown={onKeyDown}
                onPointerDown={onPointerDown}
                onPointerMove={onPointerMove}
                onPointerUp={onPointerUp}
                onPointerCancel={() => setDrag(null)}
                onPointerLeave={() => gesture.current === null && setHover(null)}
                onDblClick={() => {
                  clearTimeout(click.current);
                  click.current = undefined;
                  props.onRange(null);
                }}
              />
            </div>
          </div>
        </div>
        <HeatTip answer={whole} hover={hover} finding={finding} width={width} height={height} />
      </div>
      {rowHeight < 1 && !printing && (
        <p class="legend">
          A line of pixels shows {Math.ceil(1 / rowHeight)} tensors. The key ] and Alt with the wheel make
          rows higher.
        </p>
      )}
      {printing && <HeatSheets heat={heat} />}
    </>
  );
}
