/** The application: header with the pages, the shown page, dialogs, keys, and live changes. */
import { options } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { RunChanged, Runs } from "./contract.ts";
import { Compare } from "./pages/compare.tsx";
import { Layers } from "./pages/layers.tsx";
import { Overview } from "./pages/overview.tsx";
import { Predictions } from "./pages/predictions.tsx";
import { Ranks } from "./pages/ranks.tsx";
import { Rules } from "./pages/rules.tsx";
import { RunList } from "./pages/runs.tsx";
import { Tensor } from "./pages/tensor.tsx";
import { Time } from "./pages/time.tsx";
import { Actions } from "./parts/actions.tsx";
import { Help } from "./parts/help.tsx";
import { Search } from "./parts/search.tsx";
import { StatusBadge } from "./parts/status.tsx";
import { PAGES, type PageName, type Route } from "./route.ts";
import { Router } from "./router.ts";
import type { Source } from "./source.ts";
import { type App, AppContext, go, href, useSettled, waiting } from "./state.ts";
import { currentTheme, showTheme, type Theme } from "./theme.ts";

const VIEWS: Readonly<Record<PageName, () => preact.JSX.Element | null>> = {
  overview: Overview,
  layers: Layers,
  tensor: Tensor,
  ranks: Ranks,
  time: Time,
  compare: Compare,
  predictions: Predictions,
  rules: Rules,
  runs: RunList,
};

export function Application({ source, first }: { readonly source: Source; readonly first: Runs }) {
  const router = useMemo(() => new Router(), []);
  const route = useRoute(router);
  const { runs, versions, connected } = useLive(source, first);
  const [theme, setTheme, printing] = useTheme();
  const [dialog, setDialog] = useState<"" | "help" | "search">("");
  const known = route.parameters.run ?? "";
  const run = known !== "" ? known : (runs.runs[0]?.id ?? "");
  const several = runs.runs.length > 1;
  const page =
    route.page === "runs" || (known === "" && several && location.hash.length < 3) ? "runs" : route.page;
  const app = useMemo<App>(
    () => ({ source, router, runs, route, run, versions, theme, printing }),
    [source, router, runs, route, run, versions, theme, printing],
  );
  const line = runs.runs.find((each) => each.id === run);
  useKeys(app, dialog, setDialog);
  useEffect(() => {
    const title = PAGES.find(([name]) => name === page)?.[1] ?? "Runs";
    document.title =
      line === undefined || page === "runs" ? `${title} · tdcore` : `${line.name} · ${title} · tdcore`;
  }, [page, line]);
  const View = VIEWS[page];
  return (
    <AppContext.Provider value={app}>
      <button type="button" class="skip" onClick={() => document.getElementById("main")?.focus()}>
        Skip to the page
      </button>
      <header class="top">
        <a
          class="brand"
          href={several ? "#/runs" : href(app, "overview")}
          title={several ? "All runs" : "Overview"}
        >
          tdcore
        </a>
        {several && <RunPicker app={app} page={page} />}
        {!several && line !== undefined && (
          <span class="run-name" title={line.name}>
            {line.name}
          </span>
        )}
        {line !== undefined && line.status !== "reading" && page !== "runs" && (
          <StatusBadge status={line.status} />
        )}
        <nav aria-label="Pages">
          {page !== "runs" &&
            PAGES.map(([name, title]) => (
              <a key={name} href={href(app, name)} aria-current={name === page ? "page" : undefined}>
                {title}
              </a>
            ))}
        </nav>
        <div class="tools">
          {source.live && !connected && (
            <span class="badge died" role="status">
              no connection
            </span>
          )}
          {page !== "runs" && <Actions line={line} />}
          <button
            type="button"
            class="quiet"
            onClick={() => setDialog("search")}
            title="Search tensors ( / )"
          >
            Search <kbd>/</kbd>
          </button>
          <button
            type="button"
            class="quiet icon"
            aria-label={`Change to the ${theme === "dark" ? "light" : "dark"} theme`}
            title="Light or dark ( t )"
            onClick={() => setTheme(theme === "dark" ? "light" : "dark")}
          >
            {theme === "dark" ? "☀" : "☾"}
          </button>
          <button
            type="button"
            class="quiet icon"
            aria-label="Keys and gestures"
            title="Help ( ? )"
            onClick={() => setDialog("help")}
          >
            ?
          </button>
        </div>
      </header>
      <Busy />
      <main id="main" tabIndex={-1}>
        {run === "" && page !== "runs" ? (
          <RunList />
        ) : (
          <View key={`${page} ${page === "tensor" ? "" : run}`} />
        )}
      </main>
      {dialog === "help" && <Help onClose={() => setDialog("")} />}
      {dialog === "search" && <Search onClose={() => setDialog("")} />}
    </AppContext.Provider>
  );
}

/** A moving line under the header while an answer takes long. */
function Busy() {
  const [count, setCount] = useState(waiting.count);
  useEffect(() => {
    waiting.listeners.add(setCount);
    setCount(waiting.count);
    return () => waiting.listeners.delete(setCount) && undefined;
  }, []);
  return <div class={`busy ${useSettled(count > 0, 200) && count > 0 ? "active" : ""}`} aria-hidden="true" />;
}

function RunPicker({ app, page }: { readonly app: App; readonly page: PageName }) {
  return (
    <select
      class="run-picker"
      aria-label="Run"
      value={page === "runs" ? "" : app.run}
      onChange={(event) => {
        const run = event.currentTarget.value;
        if (run === "") location.hash = "#/runs";
        else go(app, page === "runs" ? "overview" : page, { run });
      }}
    >
      <option value="">all runs</option>
      {app.runs.runs.map((each) => (
        <option key={each.id} value={each.id}>
          {each.name}
        </option>
      ))}
    </select>
  );
}

function useRoute(router: Router): Route {
  const [route, setRoute] = useState(router.route);
  useEffect(() => router.listen(setRoute), [router]);
  return route;
}

/** The colours, a function that changes them, and whether the page is being printed. */
function useTheme(): [Theme, (theme: Theme) => void, boolean] {
  const [theme, setTheme] = useState<Theme>(currentTheme);
  const [printing, setPrinting] = useState(false);
  useEffect(() => {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const follow = (): void => {
      showTheme(currentTheme(), false);
      setTheme(currentTheme());
    };
    const before = (): void => {
      showTheme("light", false);
      atOnce(() => {
        setTheme("light");
        setPrinting(true);
      });
    };
    const after = (): void => {
      setPrinting(false);
      follow();
    };
    system.addEventListener("change", follow);
    addEventListener("beforeprint", before);
    addEventListener("afterprint", after);
    return () => {
      system.removeEventListener("change", follow);
      removeEventListener("beforeprint", before);
      removeEventListener("afterprint", after);
    };
  }, []);
  const choose = (next: Theme): void => {
    showTheme(next, true);
    setTheme(next);
  };
  return [theme, choose, printing];
}

/** Render a change of state, and draw its canvases, before this function returns, because printing does not wait. */
function atOnce(change: () => void): void {
  const { debounceRendering, requestAnimationFrame } = options;
  options.debounceRendering = (render) => render();
  options.requestAnimationFrame = (draw) => draw();
  change();
  Object.assign(options, { debounceRendering, requestAnimationFrame });
}

const TOGETHER_MS = 300; // changes within this time are one refresh

/** The list of runs and the versions of runs, which change with the events of the server. */
function useLive(
  source: Source,
  first: Runs,
): { runs: Runs; versions: ReadonlyMap<string, number>; connected: boolean } {
  const [runs, setRuns] = useState(first);
  const [versions, setVersions] = useState<ReadonlyMap<string, number>>(new Map());
  const [connected, setConnected] = useState(true);
  const changed = useRef(new Map<string, number>());
  const newest = useRef(runs);
  newest.current = runs;
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let lost = false;
    const refresh = (): void => {
      timer = undefined;
      setVersions((old) => new Map([...old, ...changed.current]));
      changed.current.clear();
      source.get<Runs>("runs", {}).then(setRuns, () => undefined);
    };
    const later = (): void => {
      timer ??= setTimeout(refresh, TOGETHER_MS);
    };
    const onChange = ({ run, version }: RunChanged): void => {
      changed.current.set(run, version);
      later();
    };
    const onState = (state: boolean): void => {
      setConnected(state);
      if (state && lost) {
        for (const each of newest.current.runs) changed.current.set(each.id, -Date.now()); // events may be lost
        later();
      }
      lost = !state;
    };
    const end = source.listen(onChange, onState);
    return () => {
      clearTimeout(timer);
      end();
    };
  }, [source]);
  return { runs, versions, connected };
}

/** Keys of the whole page. Fields and dialogs keep their keys. */
function useKeys(app: App, dialog: string, setDialog: (dialog: "" | "help" | "search") => void): void {
  useEffect(() => {
    const listen = (event: KeyboardEvent): void => {
      const target = event.target as HTMLElement;
      if (
        event.ctrlKey ||
        event.metaKey ||
        event.altKey ||
        dialog !== "" ||
        document.querySelector("dialog[open]") !== null
      )
        return;
      if (["INPUT", "SELECT", "TEXTAREA"].includes(target.tagName)) {
        if (event.key === "Escape") target.blur();
        return;
      }
      const page = PAGES[Number(event.key) - 1];
      if (page !== undefined && app.run !== "") go(app, page[0]);
      else if (event.key === "/") setDialog("search");
      else if (event.key === "?") setDialog("help");
      else if (event.key === "t")
        document.querySelector<HTMLButtonElement>('.tools [title^="Light"]')?.click();
      else if (event.key === "f") document.querySelector<HTMLInputElement>("[data-filter]")?.focus();
      else if (event.key === "r") location.hash = "#/runs";
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, [app, dialog, setDialog]);
}
