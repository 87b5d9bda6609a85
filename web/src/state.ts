/** State of the application that all pages share, and the hooks that read it. */
import { createContext } from "preact";
import { useContext, useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Runs } from "./contract.ts";
import { keyOf, type Parameters } from "./keys.ts";
import { format, type PageName, type Route } from "./route.ts";
import type { Router } from "./router.ts";
import type { Source } from "./source.ts";

export interface App {
  readonly source: Source;
  readonly router: Router;
  readonly runs: Runs;
  readonly route: Route;
  readonly run: string; // id of the run that is shown; "" for none
  readonly versions: ReadonlyMap<string, number>; // of runs that changed since the page was opened
  readonly theme: "light" | "dark";
  readonly printing: boolean;
}

export const AppContext = createContext<App | null>(null);

export function useApp(): App {
  const app = useContext(AppContext);
  if (app === null) throw new Error("useApp() is for children of AppContext");
  return app;
}

/** Address of a page of the same run. */
export function href(app: App, page: PageName, parameters: Parameters = {}): string {
  return format({ page, parameters: { run: app.run, ...parameters } });
}

/** Open a page. */
export function go(app: App, page: PageName, parameters: Parameters = {}): void {
  app.router.open({ page, parameters: { run: app.run, ...parameters } });
}

/** Change parameters of the shown page without an entry in the history. "" removes a parameter. */
export function setParameters(app: App, changes: Parameters): void {
  app.router.change(changes);
}

/** The requests that the reader waits for. */
export const waiting = {
  count: 0,
  listeners: new Set<(count: number) => void>(),
  add(change: 1 | -1): void {
    this.count += change;
    for (const listener of this.listeners) listener(this.count);
  },
};

export interface Answer<T> {
  readonly data: T | null; // the newest answer; that of the previous request until the next one arrives
  readonly error: string;
  readonly loading: boolean; // a request without an answer; false while data is only refreshed
  readonly key: string; // of the request that `data` answers
}

/**
 * The answer of a request, requested again when one of `runs` changes.
 *
 * The data of the previous parameters stays until the new data arrives, so that a page does not flicker.
 */
export function useAnswer<T>(
  name: string,
  parameters: Parameters | null,
  runs?: readonly string[],
): Answer<T> {
  const app = useApp();
  const { source } = app;
  const key = parameters === null ? "" : `${keyOf(name, parameters)}|${JSON.stringify(parameters)}`;
  const version = (runs ?? [app.run]).map((run) => app.versions.get(run) ?? 0).join();
  const [answer, setAnswer] = useState<Answer<T>>({
    data: null,
    error: "",
    loading: parameters !== null,
    key: "",
  });
  const refresh = useRef<() => void>(() => undefined);

  // biome-ignore lint/correctness/useExhaustiveDependencies: `key` stands for `name` and `parameters`.
  useEffect(() => {
    if (parameters === null) return undefined;
    const abort = new AbortController();
    let pending = false;
    let again = false; // the run changed while the request was pending
    let awaited = true;
    const arrived = (): void => {
      if (awaited) waiting.add(-1);
      awaited = false;
    };
    waiting.add(1);
    const request = async (): Promise<void> => {
      if (pending) {
        again = true;
        return;
      }
      pending = true;
      do {
        again = false;
        try {
          const data = await source.get<T>(name, parameters, abort.signal);
          if (!abort.signal.aborted) setAnswer({ data, error: "", loading: false, key });
          arrived();
        } catch (error) {
          const text = error instanceof Error ? error.message : String(error);
          arrived();
          if (!abort.signal.aborted)
            setAnswer((old) => ({
              data: old.key === key ? old.data : null,
              error: text,
              loading: false,
              key,
            }));
        }
      } while (again && !abort.signal.aborted);
      pending = false;
    };
    refresh.current = () => void request();
    setAnswer((old) => ({ ...old, loading: true }));
    void request();
    return () => {
      refresh.current = () => undefined;
      arrived();
      abort.abort();
    };
  }, [source, key]);

  const first = useRef(version);
  useEffect(() => {
    if (first.current === version) return;
    first.current = version;
    refresh.current();
  }, [version]);
  return answer;
}

/** `value`, after it was the same for `milliseconds`. */
export function useSettled<T>(value: T, milliseconds: number): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value, milliseconds]);
  return settled;
}

let ids = 0;

/** An id for an element that no other element has. (The ids of Preact's hook repeat after a new rendering.) */
export function useElementId(): string {
  return useState(() => `e${++ids}`)[0];
}

/** Width and height of an element in CSS pixels, 0 until it is on the page. */
export function useSize<E extends HTMLElement>(): [preactRef<E>, number, number] {
  const ref = useRef<E>(null);
  const [size, setSize] = useState<[number, number]>([0, 0]);
  useEffect(() => {
    const element = ref.current;
    if (element === null) return undefined;
    const measure = (): void => {
      const next: [number, number] = [element.clientWidth, element.clientHeight];
      setSize((old) => (old[0] === next[0] && old[1] === next[1] ? old : next));
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [ref, size[0], size[1]];
}

type preactRef<E> = { current: E | null };

/** The object of an earlier rendering, if all of its fields are the same. */
export function useStable<T extends object>(value: T): T {
  const kept = useRef(value);
  const names = Object.keys(value) as (keyof T)[];
  if (!names.every((name) => Object.is(kept.current[name], value[name]))) kept.current = value;
  return kept.current;
}

/** Memo of a computation over an answer. */
export function useComputed<T, R>(data: T, compute: (data: T) => R): R {
  // biome-ignore lint/correctness/useExhaustiveDependencies: `compute` depends on `data` only.
  return useMemo(() => compute(data), [data]);
}
