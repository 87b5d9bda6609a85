/** Texts of numbers, times and names. */
import type { At, Curve } from "../contract.ts";

const NARROW = "\u202f"; // between groups of digits, and between a number and its unit

/** A number with 4 significant digits: "0.01234", "1.5e-7", "12,345", "NaN", "∞". */
export function number(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return minus(exponent(value.toPrecision(4)));
  if (Number.isInteger(value)) return count(value);
  return minus(String(Number(value.toPrecision(4))));
}

/** "1.500e-7" as "1.5e-7". */
function exponent(text: string): string {
  const [mantissa, power] = Number(text).toExponential().split("e");
  return `${mantissa}e${power?.replace("+", "")}`;
}

const minus = (text: string): string => text.replace(/^-/, "−").replace("e-", "e−");

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** A whole number with groups of digits: "12,345". */
export function count(value: number): string {
  return minus(WHOLE.format(Math.round(value)));
}

/** "1 tensor", "3 tensors". */
export function counted(value: number, noun: string, plural = `${noun}s`): string {
  return `${count(value)} ${value === 1 ? noun : plural}`;
}

/** A share as "12.3 %"; small shares keep a digit that is not 0. */
export function percent(share: number): string {
  if (!Number.isFinite(share)) return number(share);
  const value = share * 100;
  if (value > 0 && value < 0.005) return `<${NARROW}0.01${NARROW}%`;
  const digits = value === 0 || Math.abs(value) >= 10 ? 0 : Math.abs(value) >= 0.1 ? 1 : 2;
  return `${minus(String(Number(value.toFixed(digits))))}${NARROW}%`;
}

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** "12.5 MiB". */
export function bytes(value: number): string {
  let unit = 0;
  let rest = value;
  while (rest >= 1024 && unit < BYTES.length - 1) {
    rest /= 1024;
    unit++;
  }
  return `${unit === 0 ? count(rest) : String(Number(rest.toPrecision(3)))}${NARROW}${BYTES[unit]}`;
}

/** A duration: "850 ms", "12.3 s", "4 min 10 s", "3 h 5 min". */
export function duration(seconds: number): string {
  if (seconds < 1e-3) return `${Number((seconds * 1e6).toPrecision(3))}${NARROW}µs`;
  if (seconds < 1) return `${Number((seconds * 1e3).toPrecision(3))}${NARROW}ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))}${NARROW}s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)}${NARROW}min ${whole % 60}${NARROW}s`;
  if (whole < 86_400)
    return `${Math.floor(whole / 3600)}${NARROW}h ${Math.floor((whole % 3600) / 60)}${NARROW}min`;
  return `${Math.floor(whole / 86_400)}${NARROW}d ${Math.floor((whole % 86_400) / 3600)}${NARROW}h`;
}

/** Date and time in the zone of the reader: "2026-11-30 14:05:09"; "" for 0. */
export function time(nanoseconds: number): string {
  if (nanoseconds <= 0) return "";
  const at = new Date(nanoseconds / 1e6);
  const two = (value: number): string => String(value).padStart(2, "0");
  const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${date} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** "64 × 128"; "scalar" for no dimensions. */
export function shape(sizes: readonly number[]): string {
  return sizes.length === 0 ? "scalar" : sizes.join(" × ");
}

/** "step 40" of one step, "steps 40 to 49" of several. */
export function steps(first: number, last: number): string {
  return first === last ? `step ${count(first)}` : `steps ${count(first)} to ${count(last)}`;
}

/** First and last step of a finding. */
export function span(at: At, last: At): string {
  return last.mode_step === at.mode_step ? at.text : `${at.text} to step ${count(last.mode_step)}`;
}

/** Name of a curve in a legend. */
export function curveName(curve: Curve, modes: number): string {
  const parts = [curve.name];
  if (modes > 1) parts.push(curve.mode);
  if (curve.worker !== "") parts.push(curve.worker);
  return parts.join(" · ");
}
