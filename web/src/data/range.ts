/** A visible range of steps inside of the whole range. */

export interface Range {
  readonly from: number;
  readonly to: number;
}

/** Range after a zoom by `factor` (below 1: closer) around `center`, inside of `whole`, at least `least` long. */
export function zoomed(range: Range, factor: number, center: number, whole: Range, least = 2): Range {
  const width = Math.min(whole.to - whole.from, Math.max(least, (range.to - range.from) * factor));
  const share = range.to > range.from ? (center - range.from) / (range.to - range.from) : 0.5;
  return inside({ from: center - share * width, to: center + (1 - share) * width }, whole);
}

/** Range moved by `steps`, inside of `whole`. */
export function panned(range: Range, steps: number, whole: Range): Range {
  return inside({ from: range.from + steps, to: range.to + steps }, whole);
}

/** Move a range into `whole` without a change of its length, if it fits. */
export function inside(range: Range, whole: Range): Range {
  const width = Math.min(range.to - range.from, whole.to - whole.from);
  const from = Math.max(whole.from, Math.min(range.from, whole.to - width));
  return { from, to: from + width };
}

/** Whether two ranges show the same steps. */
export function same(first: Range, second: Range): boolean {
  const width = Math.max(1e-9, first.to - first.from);
  return Math.abs(first.from - second.from) < width * 1e-6 && Math.abs(first.to - second.to) < width * 1e-6;
}
