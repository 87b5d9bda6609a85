/**
 * Pixels of a heat map.
 *
 * Cells without an ordinary value have a pattern, so that they differ from each other and from values in grey too:
 * NaN is crossed, infinite is barred, lost is hatched, absent is dotted.
 */
import { CellFlag } from "../contract.ts";
import { pixel, type Rgb, type Scale, table } from "../data/colors.ts";
import type { Theme } from "../theme.ts";
import type { PixelColumns, Tile } from "./heat_tile.ts";

interface Palette {
  readonly surface: Rgb;
  readonly nan: readonly [Rgb, Rgb];
  readonly infinite: readonly [Rgb, Rgb];
  readonly lost: readonly [Rgb, Rgb];
  readonly absent: readonly [Rgb, Rgb];
}

const LIGHT: Palette = {
  surface: [255, 255, 255],
  nan: [
    [230, 0, 60],
    [255, 255, 255],
  ],
  infinite: [
    [255, 150, 0],
    [20, 20, 20],
  ],
  lost: [
    [206, 211, 218],
    [110, 118, 130],
  ],
  absent: [
    [244, 245, 247],
    [176, 183, 192],
  ],
};

const DARK: Palette = {
  surface: [21, 26, 33],
  nan: [
    [255, 40, 90],
    [255, 255, 255],
  ],
  infinite: [
    [255, 160, 30],
    [0, 0, 0],
  ],
  lost: [
    [62, 70, 82],
    [140, 150, 164],
  ],
  absent: [
    [27, 33, 41],
    [74, 84, 97],
  ],
};

/** Colours of the patterns, as pixels. */
export interface Pixels {
  readonly surface: number;
  readonly values: Uint32Array;
  readonly nan: readonly [number, number];
  readonly infinite: readonly [number, number];
  readonly lost: readonly [number, number];
  readonly absent: readonly [number, number];
}

export function pixelsOf(theme: Theme, scale: Scale): Pixels {
  const palette = theme === "dark" ? DARK : LIGHT;
  const pair = ([ground, ink]: readonly [Rgb, Rgb]): readonly [number, number] => [pixel(ground), pixel(ink)];
  return {
    surface: pixel(palette.surface),
    values: Uint32Array.from(table(scale.kind), (color) => pixel(color)),
    nan: pair(palette.nan),
    infinite: pair(palette.infinite),
    lost: pair(palette.lost),
    absent: pair(palette.absent),
  };
}

/** Index of the pattern of a cell: 0 an ordinary value, 1 NaN, 2 infinite, 3 lost, 4 absent, 5 nothing saved. */
export function patternOf(flags: number): number {
  if (flags & CellFlag.Nan) return 1;
  if (flags & CellFlag.Infinite) return 2;
  if (flags & CellFlag.Present) return 0;
  if (flags & CellFlag.Lost) return 3;
  if (flags & CellFlag.Absent) return 4;
  return 5;
}

/** Pixel (x, y) of a pattern. The patterns are fixed to the screen and repeat at every 6 pixels. */
export function patternPixel(pattern: number, x: number, y: number, pixels: Pixels): number {
  switch (pattern) {
    case 1: {
      const u = (x + y) % 6;
      const v = (x - y + 6000) % 6;
      return u === 0 || v === 0 ? pixels.nan[1] : pixels.nan[0];
    }
    case 2:
      return x % 3 === 0 ? pixels.infinite[1] : pixels.infinite[0];
    case 3:
      return (x + y) % 4 === 0 ? pixels.lost[1] : pixels.lost[0];
    case 4:
      return x % 3 === 0 && y % 3 === 0 ? pixels.absent[1] : pixels.absent[0];
    default:
      return pixels.surface;
  }
}

export interface Painted {
  readonly image: Uint32Array; // width x height pixels
  readonly width: number;
  readonly height: number;
  readonly rowHeight: number; // in pixels of the image; may be a fraction
  readonly scrollTop: number;
}

/** A part of the picture: columns from `tile`, at the pixels where `columns` has any. */
export interface Layer {
  readonly tile: Tile;
  readonly columns: PixelColumns;
}

const SHADES = 250; // codes below are shades of values, codes from here on are patterns
const NAN = SHADES + 1;
const INFINITE = SHADES + 2;
const EMPTY = SHADES + 5;

const coded = new WeakMap<Tile, { readonly scale: Scale; readonly codes: Uint8Array }>();

/** One byte per cell: its shade, or SHADES plus its pattern. Computed once for each tile and scale. */
function codesOf(tile: Tile, scale: Scale): Uint8Array {
  const known = coded.get(tile);
  if (known?.scale === scale) return known.codes;
  const { flags, mean } = tile;
  const codes = new Uint8Array(flags.length);
  for (let cell = 0; cell < codes.length; cell++) {
    const value = mean[cell]!;
    const pattern = patternOf(flags[cell]!);
    if (pattern !== 0) codes[cell] = SHADES + pattern;
    else codes[cell] = Number.isFinite(value) ? Math.round(scale.at(value) * (SHADES - 1)) : EMPTY;
  }
  coded.set(tile, { scale, codes });
  return codes;
}

/** Paint all visible rows. The first layer that has a column at a pixel is shown. */
export function paint(
  target: Painted,
  layers: readonly Layer[],
  rows: readonly number[], // of the tiles, in the order of the picture
  scale: Scale,
  pixels: Pixels,
): void {
  const { image, width, height, rowHeight, scrollTop } = target;
  const sources = layers.map((each) => ({ ...each, codes: codesOf(each.tile, scale) }));
  const shown = Array.from({ length: width }, (_, x) => sources.find((each) => each.columns.first[x]! >= 0));
  const shades = Uint32Array.from({ length: SHADES }, (_, shade) => {
    return pixels.values[Math.round((shade / (SHADES - 1)) * (pixels.values.length - 1))]!;
  });
  const line = new Uint32Array(width);
  const special = new Int32Array(width); // pixels of the row that have a pattern
  const patterns = new Uint8Array(width);
  const gap = rowHeight >= 9 ? 1 : 0; // a line of background between high rows
  let y = 0;
  let from = Math.floor(scrollTop / rowHeight); // first row of the pixels from y on
  for (let at = from; at < rows.length && y < height; at++) {
    const bottom = Math.min(height, Math.round((at + 1) * rowHeight - scrollTop));
    if (bottom <= y) continue; // the next row is in the same pixel
    let specials = 0;
    for (let x = 0; x < width; x++) {
      const code = codeAt(shown[x], x, rows, from, at + 1);
      if (code < SHADES) line[x] = shades[code]!;
      else {
        special[specials] = x;
        patterns[specials++] = code - SHADES;
      }
    }
    from = at + 1;
    for (; y < bottom - gap; y++) {
      const start = y * width;
      image.set(line, start);
      for (let each = 0; each < specials; each++) {
        const x = special[each]!;
        image[start + x] = patternPixel(patterns[each]!, x, y, pixels);
      }
    }
    if (gap > 0 && y < bottom) {
      image.fill(pixels.surface, y * width, bottom * width);
      y = bottom;
    }
  }
  image.fill(pixels.surface, y * width);
}

/**
 * Code of a pixel.
 *
 * A pixel of several cells has the pattern of a cell with NaN or infinite elements, else the mean shade, else the
 * pattern of the cells without a value. The pixel has the lines `from` to `to - 1` of `rows`.
 */
function codeAt(
  source: (Layer & { readonly codes: Uint8Array }) | undefined,
  x: number,
  rows: readonly number[],
  from: number,
  to: number,
): number {
  if (source === undefined) return EMPTY;
  const { tile, columns, codes } = source;
  const first = columns.first[x]!;
  const last = columns.last[x]!;
  if (first === last && to - from === 1) return codes[rows[from]! * tile.columns + first]!;
  let sum = 0;
  let count = 0;
  let least = EMPTY;
  for (let line = from; line < to; line++) {
    const begin = rows[line]! * tile.columns;
    for (let column = first; column <= last; column++) {
      const code = codes[begin + column]!;
      if (code === NAN) return NAN;
      if (code < SHADES) {
        sum += code;
        count++;
      } else if (code < least) least = code;
    }
  }
  return least === INFINITE || count === 0 ? least : Math.round(sum / count);
}
