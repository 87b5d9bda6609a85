/** Light and dark: the setting of the system, or the choice of the reader. Canvases read their colours here. */
export type Theme = "light" | "dark";

const KEY = "tdcore-theme";

function stored(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // a page from a file may have no storage
  }
}

/** The theme to show. */
export function currentTheme(): Theme {
  const choice = stored();
  if (choice === "light" || choice === "dark") return choice;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Show a theme; `remember` keeps it for the next page. */
export function showTheme(theme: Theme, remember: boolean): void {
  document.documentElement.dataset.theme = theme;
  if (!remember) return;
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // No storage: the choice is valid for this page only.
  }
}

export interface Ink {
  readonly text: string;
  readonly muted: string;
  readonly faint: string; // lines of grids
  readonly surface: string; // background of charts
  readonly accent: string;
  readonly finding: string;
  readonly bad: string;
  readonly series: readonly string[];
}

const LIGHT: Ink = {
  text: "#1a2027",
  muted: "#56616e",
  faint: "#e3e7ec",
  surface: "#ffffff",
  accent: "#0b63c5",
  finding: "#c2410c",
  bad: "#c1121f",
  series: ["#1f6fd1", "#d4581a", "#138a72", "#a03fae", "#8a7100", "#c42b62", "#3d4fb8", "#4d7c0f"],
};

const DARK: Ink = {
  text: "#e2e7ee",
  muted: "#95a1b0",
  faint: "#262d37",
  surface: "#151a21",
  accent: "#6cb2ff",
  finding: "#ff9248",
  bad: "#ff6b70",
  series: ["#6cb2ff", "#ffa060", "#43cfae", "#d78be6", "#dcc14a", "#ff86ad", "#9aa8ff", "#a3d65c"],
};

export function ink(theme: Theme): Ink {
  return theme === "dark" ? DARK : LIGHT;
}

/** Colour of series `index`; the colours repeat. */
export function seriesColor(theme: Theme, index: number): string {
  const { series } = ink(theme);
  return series[index % series.length]!;
}
