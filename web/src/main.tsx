/** Start of the page: opens the source of its data, and draws the application. */
import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import { Application } from "./app.tsx";
import type { Runs } from "./contract.ts";
import { openSource } from "./source.ts";
import "./styles/base.css";
import "./styles/controls.css";
import "./styles/pages.css";
import "./styles/print.css";
import { currentTheme, showTheme } from "./theme.ts";

async function start(root: HTMLElement): Promise<void> {
  showTheme(currentTheme(), false);
  try {
    const source = await openSource(document);
    const runs = await source.get<Runs>("runs", {});
    root.replaceChildren();
    render(<Application source={source} first={runs} />, root);
  } catch (error) {
    const text = document.createElement("p");
    text.className = "fatal";
    text.setAttribute("role", "alert");
    text.textContent = error instanceof Error ? error.message : String(error);
    root.replaceChildren(text);
  }
}

const root = document.getElementById("app");
if (root !== null) void start(root);
