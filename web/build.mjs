// Builds the page into tdcore/view/static/: view.js, view.css, index.html, and the licenses of the libraries in it.
//
//     node build.mjs            once; the same sources give the same bytes
//     node build.mjs --watch    at every change
import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { context } from "esbuild";

const here = new URL(".", import.meta.url);
const target = new URL("../tdcore/view/static/", here);
const LIBRARIES = ["preact", "uplot"];

/** Licenses of the libraries that view.js contains. */
async function licenses() {
  const texts = [];
  for (const name of LIBRARIES) {
    const folder = new URL(`node_modules/${name}/`, here);
    const { version } = JSON.parse(await readFile(new URL("package.json", folder), "utf8"));
    const text = await readFile(new URL("LICENSE", folder), "utf8");
    texts.push(`${name} ${version}\n\n${text.trim()}\n`);
  }
  return texts.join(`\n${"-".repeat(80)}\n\n`);
}

await mkdir(target, { recursive: true });
const builder = await context({
  absWorkingDir: new URL(".", here).pathname,
  entryPoints: { view: "src/main.tsx" },
  outdir: target.pathname,
  bundle: true,
  minify: true,
  format: "iife", // a report contains it as a classic script
  target: ["chrome111", "firefox115", "safari16.4"],
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none", // the licenses are in LICENSES.txt
  loader: { ".svg": "dataurl" },
  logLevel: "info",
});
await copyFile(new URL("src/index.html", here), new URL("index.html", target));
await writeFile(new URL("LICENSES.txt", target), await licenses());
if (process.argv.includes("--watch")) {
  await builder.watch();
} else {
  await builder.rebuild();
  await builder.dispose();
}
