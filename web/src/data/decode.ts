/** Arrays of the answers, as typed arrays. */
import type { Packed, Points } from "../contract.ts";

export type Numbers = Float32Array | Float64Array | Int32Array | Uint8Array;

const ARRAYS = { f32: Float32Array, f64: Float64Array, i32: Int32Array, u8: Uint8Array } as const;

const unpacked = new WeakMap<Packed, Numbers>();

/** Elements of a packed array. The result is kept for as long as its answer, and must not be changed. */
export function numbers(packed: Packed): Numbers {
  let result = unpacked.get(packed);
  if (result === undefined) {
    const bytes = bytesOf(packed.base64);
    const type = ARRAYS[packed.type];
    const whole = bytes.byteLength - (bytes.byteLength % type.BYTES_PER_ELEMENT);
    result = new type(bytes.buffer, 0, whole / type.BYTES_PER_ELEMENT);
    unpacked.set(packed, result);
  }
  return result;
}

/** Bytes of a text in base64. */
export function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index++) bytes[index] = text.charCodeAt(index);
  return bytes;
}

/** The arrays of a curve. */
export interface Line {
  readonly step: Numbers;
  readonly mean: Numbers;
  readonly min: Numbers;
  readonly max: Numbers;
  readonly bad: Numbers;
}

/** Decode a curve. */
export function line(points: Points): Line {
  return {
    step: numbers(points.step),
    mean: numbers(points.mean),
    min: numbers(points.min),
    max: numbers(points.max),
    bad: numbers(points.bad),
  };
}

/** A curve whose visible part has the points of `detail`, and the points of `whole` before and after it. */
export function refined(whole: Points, detail: Points | undefined): Line {
  const [coarse, fine] = [line(whole), detail === undefined ? null : line(detail)];
  if (fine === null || fine.step.length === 0) return coarse;
  const join = splice(coarse.step, fine.step);
  return {
    step: join(coarse.step, fine.step),
    mean: join(coarse.mean, fine.mean),
    min: join(coarse.min, fine.min),
    max: join(coarse.max, fine.max),
    bad: join(coarse.bad, fine.bad),
  };
}

/** A function that puts values at the steps `fine` into values at the steps `coarse`, instead of those between them. */
export function splice(coarse: Numbers, fine: Numbers): (coarse: Numbers, fine: Numbers) => Numbers {
  const before = lastAtMost(coarse, (fine[0] ?? 0) - 1e-9) + 1;
  const after = lastAtMost(coarse, fine[fine.length - 1] ?? 0) + 1;
  return (values, finer) => {
    const joined = new Float64Array(before + finer.length + values.length - after);
    joined.set(values.subarray(0, before));
    joined.set(finer, before);
    joined.set(values.subarray(after), before + finer.length);
    return joined;
  };
}

/** Smallest and largest finite element; null if no element is finite. */
export function extent(values: Numbers, above = Number.NEGATIVE_INFINITY): [number, number] | null {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (const value of values) {
    if (!Number.isFinite(value) || value <= above) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : null;
}

/** Index of the last element that is at most `value` in a sorted array; -1 if there is none. */
export function lastAtMost(sorted: ArrayLike<number>, value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (sorted[middle]! <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
