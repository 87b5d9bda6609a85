/** The visible steps of a page, and the answers for these steps, more finely than for all steps. */
import type { Range } from "./data/range.ts";
import { keyOf, type Parameters } from "./keys.ts";
import { type App, setParameters, useAnswer, useApp, useSettled } from "./state.ts";

const SETTLE_MS = 120; // a request waits until the range stays the same for this time

/** The visible steps in the address of a page; null for all. */
export function rangeOf(app: App): Range | null {
  const [from, to] = [Number(app.route.parameters.from ?? ""), Number(app.route.parameters.to ?? "")];
  return app.route.parameters.to !== undefined && to > from ? { from, to } : null;
}

/** Store the visible steps in the address. */
export function setRange(app: App, range: Range | null): void {
  const text = (value: number): string => String(Number(value.toFixed(2)));
  setParameters(app, range === null ? { from: "", to: "" } : { from: text(range.from), to: text(range.to) });
}

interface Detail<T> {
  readonly data: T | null;
  readonly error: string;
}

/**
 * The answer of a request for the visible steps; null while all steps are visible, and in a report.
 *
 * `names`: parameters of the first and the last step. `more`: parameters that are not part of a key, such as columns.
 */
export function useDetail<T>(
  name: string,
  request: Parameters | null,
  range: Range | null,
  { names = ["from", "to"], more = {} }: { names?: readonly [string, string]; more?: Parameters } = {},
): Detail<T> {
  const app = useApp();
  const visible = useSettled(range, SETTLE_MS);
  const zoomed = visible !== null && range !== null && request !== null && app.source.live;
  const limits = zoomed
    ? {
        [names[0]]: String(Math.floor(Math.max(0, visible.from))),
        [names[1]]: String(Math.ceil(visible.to)),
      }
    : {};
  const runs = request?.runs?.split(",");
  const { data, error, key } = useAnswer<T>(name, zoomed ? { ...request, ...limits, ...more } : null, runs);
  const fits = zoomed && key.startsWith(`${keyOf(name, request)}|`);
  return { data: fits ? data : null, error: zoomed ? error : "" };
}
