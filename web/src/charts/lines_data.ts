/** Data of a line chart in the form that uPlot reads. */
import type { Numbers } from "../data/decode.ts";

/** One line: values at steps, with an optional band around it. */
export interface Series {
  readonly label: string;
  readonly color: string;
  readonly step: Numbers;
  readonly value: Numbers; // NaN where there is no finite value
  readonly low?: Numbers | undefined;
  readonly high?: Numbers | undefined;
  readonly bad?: Numbers | undefined; // number of NaN and infinite values
  readonly dash?: readonly number[];
  readonly width?: number;
}

export type Column = (number | null | undefined)[];

export interface Aligned {
  readonly steps: number[];
  readonly columns: readonly Column[]; // per series: value, low, high
}

/** The steps of all series together, and the values of each series at these steps. undefined: not a step of it. */
export function aligned(series: readonly Series[], log: boolean): Aligned {
  const steps = union(series.map((each) => each.step));
  const columns: Column[] = [];
  for (const each of series) {
    for (const values of [each.value, each.low ?? each.value, each.high ?? each.value]) {
      columns.push(spread(steps, each.step, values, log));
    }
  }
  return { steps, columns };
}

/** Sorted union of sorted arrays. */
export function union(arrays: readonly Numbers[]): number[] {
  const [first] = arrays;
  if (arrays.length === 1 && first !== undefined) return Array.from(first);
  const all = new Set<number>();
  for (const array of arrays) for (const value of array) all.add(value);
  return [...all].sort((a, b) => a - b);
}

function spread(steps: readonly number[], own: Numbers, values: Numbers, log: boolean): Column {
  const column: Column = new Array(steps.length);
  let at = 0;
  for (let index = 0; index < own.length; index++) {
    while (at < steps.length && steps[at]! < own[index]!) at++;
    const value = values[index]!;
    column[at] = Number.isFinite(value) && !(log && value <= 0) ? value : null;
  }
  return column;
}

/** Whether a logarithmic axis shows the values better: all are above 0, and they differ by large factors. */
export function suitsLog(series: readonly Series[]): boolean {
  const all: number[] = [];
  for (const each of series) {
    for (const values of [each.value, each.high ?? []]) {
      for (const value of values) {
        if (!Number.isFinite(value)) continue;
        if (value <= 0) return false;
        all.push(value);
      }
    }
  }
  all.sort((a, b) => a - b);
  const high = all[all.length - 1] ?? 1;
  return high / (all[0] ?? 1) > 100 || high / (all[all.length >> 1] ?? 1) > 20;
}
