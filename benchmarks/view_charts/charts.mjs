// Chart libraries on 500 layers x 10,000 steps, in headless Chromium. Writes the result as JSON to the standard output.
//
//     npm ci && node charts.mjs > ../results/view_charts.<commit>.json
//
// Each case runs in a new page, three times; the result is the median. Needs Chromium in /usr/bin/chromium, or its
// path in TDCORE_CHROMIUM.
import { execFileSync } from "node:child_process";
import { gzipSync } from "node:zlib";
import os from "node:os";
import { build } from "esbuild";
import { chromium } from "playwright-core";

const LAYERS = 500;
const STEPS = 10_000;
const COLUMNS = 1200;
const LIMIT_MS = 120_000; // of a page; null in the result
const ENOUGH_MS = 30_000; // a case that takes longer in one page is not repeated
const FLAGS = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const CASES = {
  uplot_lines_full: ["uplotLines", LAYERS, STEPS],
  uplot_lines_one_per_pixel: ["uplotLines", LAYERS, COLUMNS],
  echarts_lines_full: ["echartsLines", LAYERS, STEPS],
  echarts_lines_full_lttb: ["echartsLines", LAYERS, STEPS, "lttb"],
  echarts_lines_one_per_pixel: ["echartsLines", LAYERS, COLUMNS],
  echarts_heatmap_one_per_pixel: ["echartsHeatmap", LAYERS, COLUMNS],
  pixels_heatmap_full: ["pixelsHeatmap", LAYERS, STEPS],
};

/** Bytes of a minified bundle, plain and with gzip. */
async function size(contents) {
  const result = await build({ stdin: { contents, resolveDir: import.meta.dirname }, bundle: true, minify: true,
    write: false, format: "esm" });
  const bytes = result.outputFiles[0].contents;
  return { bytes: bytes.length, gzip_bytes: gzipSync(bytes).length };
}

const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];

const bundle = await build({ entryPoints: [`${import.meta.dirname}/charts_page.js`], bundle: true, minify: true,
  write: false, format: "iife", globalName: "cases" });
const start = () => chromium.launch({ executablePath: process.env.TDCORE_CHROMIUM ?? "/usr/bin/chromium", args: FLAGS,
  chromiumSandbox: false });
let browser = await start();
const results = {};
for (const [name, [call, ...parameters]] of Object.entries(CASES)) {
  const turns = [];
  for (let turn = 0; turn < 3; turn++) {
    const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
    await page.setContent("<!doctype html><body></body>");
    await page.addScriptTag({ content: bundle.outputFiles[0].text });
    const begin = performance.now();
    const running = page.evaluate(([call, parameters]) => cases[call](...parameters), [call, parameters]);
    const limit = new Promise((done) => setTimeout(done, LIMIT_MS, null));
    const times = await Promise.race([running, limit]);
    running.catch(() => undefined); // the page of a case that takes too long is closed
    if (times === null) {
      turns.length = 0;
      await browser.close();
      browser = await start();
      break;
    }
    turns.push(times);
    await page.close();
    if (performance.now() - begin > ENOUGH_MS) break;
  }
  results[name] = Object.fromEntries(["first_paint_ms", "zoom_ms"].map((key) => [key, turns.length === 0 ? null : median(turns.map((turn) => turn[key]))]));
}
const version = browser.version();
await browser.close();
process.stdout.write(`${JSON.stringify({
  commit: execFileSync("git", ["rev-parse", "--short", "HEAD"], { encoding: "utf8" }).trim(),
  machine: { cpu: os.cpus()[0].model, cores: os.cpus().length, chromium: version, node: process.version,
    load_average: os.loadavg().map((each) => Math.round(each * 10) / 10) },
  method: `${LAYERS} layers x ${STEPS} steps, canvas of 1200 x 700 pixels, headless Chromium without GPU; from the call `
    + `to the second animation frame after it; zoom: median of 9 ranges (1 if it takes over 3 s); each case in 3 new pages (1 page if it takes over ${ENOUGH_MS / 1000} s), median; null: longer than `
    + `${LIMIT_MS / 1000} s in one page`,
  cases: results,
  bundles: {
    uplot: await size('export { default } from "uplot"'),
    echarts: await size(`import * as e from "echarts/core"; import { LineChart, HeatmapChart } from "echarts/charts";
      import { GridComponent, DataZoomComponent, VisualMapComponent, TooltipComponent } from "echarts/components";
      import { CanvasRenderer } from "echarts/renderers";
      e.use([LineChart, HeatmapChart, GridComponent, DataZoomComponent, VisualMapComponent, TooltipComponent, CanvasRenderer]);
      export { e };`),
  },
}, null, 2)}\n`);
