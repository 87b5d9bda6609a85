/** Positions and texts of ticks. */

const SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** Ticks of a linear axis: multiples of 1, 2 or 5 times a power of ten, at most `most` + 1. */
export function linearTicks(low: number, high: number, most: number, whole = false): number[] {
  if (!(high > low) || most < 1) return Number.isFinite(low) ? [low] : [];
  const raw = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const factor = [1, 2, 5, 10].find((each) => each * power >= raw * (1 - 1e-9)) ?? 10;
  const step = whole ? Math.max(1, factor * power) : factor * power;
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) {
    ticks.push(Number((index * step).toPrecision(12)));
  }
  return ticks;
}

/** Ticks of a logarithmic axis: powers of ten; with 2 and 5 between them if the axis has at most two decades. */
export function logTicks(low: number, high: number, most: number): number[] {
  if (!(low > 0) || !(high > low)) return [];
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  const every = Math.max(1, Math.ceil((last - first + 1) / Math.max(1, most)));
  const ticks = [];
  if (last - first < 2) {
    for (let power = first - 1; power <= last; power++) {
      for (const factor of [1, 2, 5]) {
        const tick = factor * 10 ** power;
        if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push(tick);
      }
    }
    if (ticks.length >= 2) return ticks;
    return linearTicks(low, high, Math.min(most, 4));
  }
  for (let power = Math.ceil(first / every) * every; power <= last; power += every) ticks.push(10 ** power);
  return ticks;
}

/** Text of a tick of a logarithmic axis: "10⁻⁴", "0.1", "1", "10", "2×10⁵". */
export function logTickText(value: number): string {
  const power = Math.floor(Math.log10(value) + 1e-9);
  const factor = Number((value / 10 ** power).toPrecision(3));
  if (power >= -3 && power <= 3) return String(Number(value.toPrecision(3)));
  const digits = [...String(Math.abs(power))].map((digit) => SUPERSCRIPT[Number(digit)]).join("");
  return `${factor === 1 ? "" : `${factor}×`}10${power < 0 ? "⁻" : ""}${digits}`;
}

const SUFFIXES = ["", "k", "M", "G", "T"];

/** Text of a tick of a linear axis: "0.25", "1,500", "20k", "3e-6". */
export function linearTickText(value: number, step = 0): string {
  const size = Math.abs(value);
  if (size < step * 1e-6) return "0";
  const sign = value < 0 ? "−" : "";
  if (size !== 0 && size < 1e-3)
    return `${sign}${Number(size.toPrecision(6)).toExponential().replace("e-", "e−")}`;
  if (size < 10_000)
    return `${sign}${Number(size.toPrecision(6)).toLocaleString("en-US", { maximumFractionDigits: 6 })}`;
  const group = Math.min(SUFFIXES.length - 1, Math.floor(Math.log10(size) / 3));
  return `${sign}${Number((size / 1000 ** group).toPrecision(6))}${SUFFIXES[group]}`;
}
