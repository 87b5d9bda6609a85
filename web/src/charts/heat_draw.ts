/** Drawing of a heat map: cells, names, axis, outlines of findings, the first bad tensor, cursor. */
import type { Finding, Layers } from "../contract.ts";
import type { Scale } from "../data/colors.ts";
import type { Range } from "../data/range.ts";
import { linearTicks, linearTickText } from "../data/ticks.ts";
import { type Ink, ink, type Theme } from "../theme.ts";
import { labels } from "./heat_labels.ts";
import { type Layer, paint, pixelsOf } from "./heat_paint.ts";
import type { Cell, Tile } from "./heat_tile.ts";

/** Margins around the cells, in CSS pixels. */
export const PLOT = { left: 236, right: 14, top: 4, bottom: 26 } as const;

/** All that a picture depends on. */
export interface Heat {
  readonly answer: Layers;
  readonly detail: Layers | null;
  readonly wholeTile: Tile;
  readonly detailTile: Tile | null;
  readonly rowsShown: readonly number[];
  readonly scale: Scale;
  readonly theme: Theme;
  readonly range: Range;
  readonly rowHeight: number;
  readonly scrollTop: number;
  readonly width: number;
  readonly height: number;
}

/** The cell under the pointer or the keyboard cursor. */
export interface Hover {
  readonly line: number; // index in rowsShown
  readonly row: number; // index in the rows of the answer
  readonly cell: Cell | null; // null where nothing was saved
  readonly x: number;
  readonly y: number;
}

const FONT = "11px system-ui, sans-serif";

function plot(heat: Heat): { width: number; height: number; perStep: number } {
  const width = Math.max(1, heat.width - PLOT.left - PLOT.right);
  const free = Math.max(1, heat.height - PLOT.top - PLOT.bottom);
  const height = Math.max(1, Math.min(free, heat.rowHeight * heat.rowsShown.length));
  return { width, height, perStep: width / (heat.range.to - heat.range.from) };
}

/** The step at a place, and the cell there if there is one. */
export function placeAt(heat: Heat, x: number, y: number): { step: number; hover: Hover | null } {
  const { width, height } = plot(heat);
  const share = Math.max(0, Math.min(1, (x - PLOT.left) / width));
  const step = heat.range.from + share * (heat.range.to - heat.range.from);
  const line = Math.floor((y - PLOT.top + heat.scrollTop) / heat.rowHeight);
  const row = heat.rowsShown[line];
  const outside = x < 0 || x > PLOT.left + width || y < PLOT.top || y > PLOT.top + height;
  if (outside || row === undefined) return { step, hover: null };
  if (x < PLOT.left) return { step, hover: { line, row, cell: null, x, y } };
  for (const tile of [heat.detailTile, heat.wholeTile]) {
    const column = tile?.columnAt(step) ?? -1;
    if (tile !== null && column >= 0 && row < tile.rows)
      return { step, hover: { line, row, cell: tile.cell(row, column), x, y } };
  }
  return { step, hover: { line, row, cell: null, x, y } };
}

/** The finding of a cell. */
export function outlineAt(heat: Heat, hover: Hover): Finding | null {
  const { cell } = hover;
  if (cell === null) return null;
  const found = heat.answer.outlines.find((each) => {
    const first = heat.wholeTile.extent(each.first_column).from;
    const last = heat.wholeTile.extent(each.last_column).to;
    return each.row === hover.row && cell.first < last && cell.last >= first;
  });
  return found?.finding ?? null;
}

function prepare(canvas: HTMLCanvasElement, heat: Heat): CanvasRenderingContext2D | null {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [Math.round(heat.width * ratio), Math.round(heat.height * ratio)];
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
    canvas.style.width = `${heat.width}px`;
    canvas.style.height = `${heat.height}px`;
  }
  const context = canvas.getContext("2d");
  context?.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** Draw everything but the cursor. */
export function drawHeat(canvas: HTMLCanvasElement, heat: Heat): void {
  const context = prepare(canvas, heat);
  if (context === null) return;
  const colors = ink(heat.theme);
  context.fillStyle = colors.surface;
  context.fillRect(0, 0, heat.width, heat.height);
  drawCells(context, heat);
  drawNames(context, heat, colors);
  drawAxis(context, heat, colors);
  clipped(context, heat, () => {
    drawOutlines(context, heat, colors);
    drawFirstBad(context, heat, colors);
  });
}

function drawCells(context: CanvasRenderingContext2D, heat: Heat): void {
  const ratio = devicePixelRatio || 1;
  const { width, height } = plot(heat);
  const pixels = { width: Math.round(width * ratio), height: Math.round(height * ratio) };
  const data = context.createImageData(pixels.width, pixels.height);
  const layers: Layer[] = [];
  for (const tile of [heat.detailTile, heat.wholeTile]) {
    if (tile !== null && tile.columns > 0 && tile.rows === heat.wholeTile.rows) {
      layers.push({ tile, columns: tile.pixels(heat.range, pixels.width) });
    }
  }
  const target = {
    image: new Uint32Array(data.data.buffer),
    ...pixels,
    rowHeight: heat.rowHeight * ratio,
    scrollTop: heat.scrollTop * ratio,
  };
  paint(target, layers, heat.rowsShown, heat.scale, pixelsOf(heat.theme, heat.scale));
  context.putImageData(data, Math.round(PLOT.left * ratio), Math.round(PLOT.top * ratio));
}

function clipped(context: CanvasRenderingContext2D, heat: Heat, draw: () => void): void {
  const { width, height } = plot(heat);
  context.save();
  context.beginPath();
  context.rect(PLOT.left - 2, PLOT.top - 2, width + 4, height + 4);
  context.clip();
  draw();
  context.restore();
}

function drawNames(context: CanvasRenderingContext2D, heat: Heat, colors: Ink): void {
  const { height } = plot(heat);
  const names = heat.rowsShown.map((row) => heat.answer.rows[row]!.name);
  const all = labels(names, heat.rowHeight, heat.scrollTop, height);
  const right = PLOT.left - 10;
  context.save();
  context.beginPath();
  context.rect(0, PLOT.top, PLOT.left, height);
  context.clip();
  context.font = FONT;
  context.textBaseline = "middle";
  context.textAlign = "right";
  let before = "";
  for (const label of all) {
    const y = PLOT.top + label.y;
    const leaf = fitted(context, label.text, right - 8);
    context.fillStyle = colors.text;
    context.fillText(leaf, right, y);
    const used = context.measureText(leaf).width;
    if (label.prefix !== "" && right - used > 30) {
      context.fillStyle = label.prefix === before ? colors.faint : colors.muted;
      if (label.prefix !== before)
        context.fillText(fitted(context, label.prefix, right - used - 8), right - used, y);
    }
    before = label.prefix;
    if (label.prefix === "" && label.bottom - label.top > 3) {
      context.fillStyle = colors.muted;
      context.globalAlpha = 0.5;
      context.fillRect(PLOT.left - 5, PLOT.top + label.top + 0.75, 1.5, label.bottom - label.top - 1.5);
      context.globalAlpha = 1;
    }
  }
  context.restore();
}

/** `text`, shortened at its start. */
function fitted(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (context.measureText(`…${text.slice(middle)}`).width <= width) high = middle;
    else low = middle + 1;
  }
  return `…${text.slice(low)}`;
}

function drawAxis(context: CanvasRenderingContext2D, heat: Heat, colors: Ink): void {
  const { width, height, perStep } = plot(heat);
  const bottom = PLOT.top + height;
  context.font = FONT;
  context.fillStyle = colors.muted;
  context.strokeStyle = colors.muted;
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const step of linearTicks(heat.range.from, heat.range.to, Math.max(2, width / 110), true)) {
    const x = Math.round(PLOT.left + (step - heat.range.from) * perStep) + 0.5;
    context.beginPath();
    context.moveTo(x, bottom + 1);
    context.lineTo(x, bottom + 5);
    context.stroke();
    context.fillText(linearTickText(step), x, bottom + 9);
  }
  context.textAlign = "right";
  context.fillText(`${heat.answer.mode} step`, PLOT.left - 10, bottom + 9);
}

/** Place of columns of the whole answer, in CSS pixels. */
function box(heat: Heat, line: number, first: number, last: number): [number, number, number, number] {
  const { perStep } = plot(heat);
  const left = PLOT.left + (heat.wholeTile.extent(first).from - heat.range.from) * perStep;
  const right = PLOT.left + (heat.wholeTile.extent(last).to - heat.range.from) * perStep;
  const top = PLOT.top + line * heat.rowHeight - heat.scrollTop;
  return [left, top, Math.max(3, right - left), Math.max(2, heat.rowHeight)];
}

function drawOutlines(context: CanvasRenderingContext2D, heat: Heat, colors: Ink): void {
  const lines = new Map(heat.rowsShown.map((row, line) => [row, line]));
  for (const outline of heat.answer.outlines) {
    const line = lines.get(outline.row);
    if (line === undefined) continue;
    const [x, y, width, height] = box(heat, line, outline.first_column, outline.last_column);
    if (y > heat.height || y + height < 0) continue;
    context.lineWidth = heat.rowHeight >= 6 ? 3 : 1.5;
    context.strokeStyle = heat.theme === "dark" ? "#000000" : "#ffffff";
    context.strokeRect(x, y, width, height);
    context.lineWidth = heat.rowHeight >= 6 ? 1.5 : 1;
    context.strokeStyle = colors.finding;
    context.strokeRect(x, y, width, height);
  }
}

function drawFirstBad(context: CanvasRenderingContext2D, heat: Heat, colors: Ink): void {
  const bad = heat.answer.first_bad;
  const line = bad === null ? -1 : heat.rowsShown.indexOf(bad.row);
  if (bad === null || line < 0) return;
  const [x, y, width, height] = box(heat, line, bad.column, bad.column);
  const middle = [x + width / 2, y + height / 2] as const;
  context.beginPath();
  context.arc(middle[0], middle[1], 8, 0, 2 * Math.PI);
  context.lineWidth = 4;
  context.strokeStyle = colors.surface;
  context.stroke();
  context.lineWidth = 2;
  context.strokeStyle = colors.bad;
  context.stroke();
  const text = "first NaN or infinite value";
  context.font = `600 ${FONT}`;
  const length = context.measureText(text).width + 12;
  const left = middle[0] - 14 - length > PLOT.left ? middle[0] - 14 - length : middle[0] + 14;
  const top = Math.max(PLOT.top + 1, Math.min(middle[1] - 9, PLOT.top + plot(heat).height - 19));
  context.fillStyle = colors.surface;
  context.beginPath();
  context.roundRect(left, top, length, 18, 4);
  context.fill();
  context.lineWidth = 1;
  context.stroke();
  context.fillStyle = colors.bad;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(text, left + 6, top + 9.5);
}

/** Draw the cursor and the selection of a drag. */
export function drawOverlay(
  canvas: HTMLCanvasElement,
  heat: Heat,
  hover: Hover | null,
  drag: { readonly from: number; readonly to: number } | null,
): void {
  const context = prepare(canvas, heat);
  if (context === null) return;
  context.clearRect(0, 0, heat.width, heat.height);
  const colors = ink(heat.theme);
  const { width, height, perStep } = plot(heat);
  clipped(context, heat, () => {
    if (hover !== null) {
      const y = PLOT.top + hover.line * heat.rowHeight - heat.scrollTop;
      context.strokeStyle = heat.theme === "dark" ? "rgba(255,255,255,0.75)" : "rgba(0,0,0,0.7)";
      context.lineWidth = 1;
      context.strokeRect(
        PLOT.left - 1,
        Math.round(y) - 0.5,
        width + 2,
        Math.max(2, Math.round(heat.rowHeight)),
      );
      if (hover.cell !== null) {
        const tile =
          heat.detailTile !== null && heat.detailTile.columnAt(hover.cell.first) === hover.cell.column
            ? heat.detailTile
            : heat.wholeTile;
        const { from, to } = tile.extent(hover.cell.column);
        const x = PLOT.left + (from - heat.range.from) * perStep;
        context.strokeRect(Math.round(x) - 0.5, PLOT.top, Math.max(2, (to - from) * perStep), height);
      }
    }
    if (drag !== null) {
      const [left, right] = [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)];
      context.fillStyle = colors.accent;
      context.globalAlpha = 0.25;
      context.fillRect(left, PLOT.top, right - left, height);
      context.globalAlpha = 1;
      context.fillRect(left, PLOT.top, 1, height);
      context.fillRect(right, PLOT.top, 1, height);
    }
  });
}
