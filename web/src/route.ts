/** The address of a page: "#/layers?run=0&statistic=l2". */

export const PAGES = [
  ["overview", "Overview"],
  ["layers", "Layers"],
  ["tensor", "Tensor"],
  ["ranks", "Ranks"],
  ["time", "Time"],
  ["compare", "Compare"],
  ["predictions", "Predictions"],
  ["rules", "Rules"],
] as const;

export type PageName = (typeof PAGES)[number][0] | "runs";

export interface Route {
  readonly page: PageName;
  readonly parameters: Readonly<Record<string, string>>;
}

/** Read a hash; an unknown page is the overview. */
export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const known = path === "runs" || PAGES.some(([name]) => name === path);
  return {
    page: known ? (path as PageName) : "overview",
    parameters: Object.fromEntries(new URLSearchParams(query)),
  };
}

/** Hash of a route. Empty parameters are left out, `run` is the first one. */
export function format(route: Route): string {
  const { run = "", ...others } = route.parameters;
  const pairs = Object.entries({ run, ...others }).filter(([, value]) => value !== "");
  const query = new URLSearchParams(pairs).toString();
  return `#/${route.page}${query === "" ? "" : `?${query}`}`;
}
