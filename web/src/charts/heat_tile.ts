/** Cells of a heat map: one answer of `layers`, with its arrays decoded. */
import { CellFlag, type Layers } from "../contract.ts";
import { lastAtMost, type Numbers, numbers } from "../data/decode.ts";
import type { Range } from "../data/range.ts";

export interface Cell {
  readonly row: number;
  readonly column: number;
  readonly first: number; // steps
  readonly last: number;
  readonly mean: number;
  readonly min: number;
  readonly max: number;
  readonly flags: number;
}

/** First and last column of each pixel; -1: no column. */
export interface PixelColumns {
  readonly first: Int32Array;
  readonly last: Int32Array;
}

export class Tile {
  readonly first: Numbers;
  readonly last: Numbers;
  readonly mean: Numbers;
  readonly min: Numbers;
  readonly max: Numbers;
  readonly flags: Numbers;
  readonly columns: number;
  readonly rows: number;
  readonly range: Range; // of the columns that exist
  readonly #ends: Float64Array; // a column is drawn up to here

  constructor(answer: Layers) {
    this.first = numbers(answer.first_steps);
    this.last = numbers(answer.last_steps);
    this.mean = numbers(answer.mean);
    this.min = numbers(answer.min);
    this.max = numbers(answer.max);
    this.flags = numbers(answer.flags);
    this.columns = this.first.length;
    this.rows = answer.rows.length;
    this.#ends = ends(this.first, this.last);
    this.range = { from: this.first[0] ?? 0, to: this.#ends[this.columns - 1] ?? 1 };
  }

  /** Column at a step; -1 where nothing was saved. */
  columnAt(step: number): number {
    const column = lastAtMost(this.first, step);
    return column >= 0 && step < this.#ends[column]! ? column : -1;
  }

  /** Steps that column `column` covers on the screen. */
  extent(column: number): Range {
    return { from: this.first[column] ?? 0, to: this.#ends[column] ?? 0 };
  }

  /** The largest number of steps from the first to the last step of a column in a range. */
  mostSteps(range: Range): number {
    let most = 1;
    for (let column = 0; column < this.columns; column++) {
      if (this.last[column]! < range.from || this.first[column]! > range.to) continue;
      most = Math.max(most, this.last[column]! - this.first[column]! + 1);
    }
    return most;
  }

  /** The columns that each of `width` pixels shows. */
  pixels(range: Range, width: number): PixelColumns {
    const first = new Int32Array(width).fill(-1);
    const last = new Int32Array(width).fill(-1);
    const perPixel = (range.to - range.from) / width;
    for (let x = 0; x < width; x++) {
      const from = range.from + x * perPixel;
      const until = lastAtMost(this.first, from + perPixel * (1 - 1e-9));
      let start = lastAtMost(this.first, from);
      if (start < 0 || from >= this.#ends[start]!) start++; // the next column may begin in this pixel
      if (start > until) continue;
      first[x] = start;
      last[x] = until;
    }
    return { first, last };
  }

  /** Numbers of a cell. */
  cell(row: number, column: number): Cell {
    const at = row * this.columns + column;
    return {
      row,
      column,
      first: this.first[column]!,
      last: this.last[column]!,
      mean: this.mean[at]!,
      min: this.min[at]!,
      max: this.max[at]!,
      flags: this.flags[at]!,
    };
  }
}

/** A column reaches to the next one, except over a gap of steps that were not saved. */
function ends(first: Numbers, last: Numbers): Float64Array {
  const count = first.length;
  const gaps = Array.from(
    { length: Math.max(0, count - 1) },
    (_, column) => first[column + 1]! - first[column]!,
  );
  gaps.sort((a, b) => a - b);
  const usual = Math.max(1, gaps[gaps.length >> 1] ?? 1);
  return Float64Array.from({ length: count }, (_, column) => {
    const longest = Math.max(last[column]! + 1, first[column]! + usual * (gaps.length > 0 ? 1.5 : 1));
    return column + 1 < count
      ? Math.min(first[column + 1]!, longest)
      : Math.max(last[column]! + 1, first[column]! + usual);
  });
}

const WORDS: readonly [CellFlag, string][] = [
  [CellFlag.Nan, "contains NaN"],
  [CellFlag.Infinite, "contains infinite values"],
  [CellFlag.Absent, "the tensor had no value"],
  [CellFlag.Lost, "not stored, or not captured"],
];

/** Flags of a cell in words; "" for an ordinary cell. */
export function flagWords(flags: number): string {
  if (flags === 0) return "no saved step";
  const words = WORDS.filter(([flag]) => (flags & flag) !== 0).map(([, text]) => text);
  return words.join(", ");
}
