// The page of charts.mjs: draws the same data with uPlot, with ECharts, and as an image of pixels.
import * as echarts from "echarts/core";
import { CustomChart, HeatmapChart, LineChart } from "echarts/charts";
import { DataZoomComponent, GridComponent, VisualMapComponent } from "echarts/components";
import { CanvasRenderer } from "echarts/renderers";
import uPlot from "uplot";

echarts.use([LineChart, HeatmapChart, CustomChart, GridComponent, DataZoomComponent, VisualMapComponent, CanvasRenderer]);

const WIDTH = 1200;
const HEIGHT = 700;

/** Values of one layer: a decaying magnitude with noise, from a fixed linear congruential generator. */
function layer(index, steps) {
  const values = new Float32Array(steps);
  let state = index * 7919 + 1;
  for (let step = 0; step < steps; step++) {
    state = (state * 1664525 + 1013904223) >>> 0;
    values[step] = Math.exp(-3 + Math.sin(index / 40) - step / 8000 + state / 2 ** 33);
  }
  return values;
}

function box() {
  document.body.replaceChildren();
  const element = document.createElement("div");
  element.style.width = `${WIDTH}px`;
  element.style.height = `${HEIGHT}px`;
  document.body.append(element);
  return element;
}

/** Milliseconds from the call of `draw` to the second animation frame after it, when its pixels are on the screen. */
async function timed(draw) {
  const begin = performance.now();
  await draw();
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - begin;
}

/** First paint, then the median of 9 zooms to other ranges of steps; of 1 if it takes over 3 s. */
async function measured(draw, zoom, steps) {
  const first = await timed(draw);
  const zooms = [];
  for (let turn = 0; turn < 9; turn++) {
    const from = turn * 0.03 * steps;
    zooms.push(await timed(() => zoom(from, from + steps * (0.3 + 0.05 * turn))));
    if (zooms[0] > 3000) break;
  }
  zooms.sort((a, b) => a - b);
  return { first_paint_ms: round(first), zoom_ms: round(zooms[zooms.length >> 1]) };
}

const round = (value) => Math.round(value * 10) / 10;

export async function uplotLines(layers, steps) {
  const x = Float64Array.from({ length: steps }, (_, step) => step);
  const data = [x, ...Array.from({ length: layers }, (_, index) => layer(index, steps))];
  const element = box();
  let plot;
  const series = data.slice(1).map(() => ({ stroke: "#4477aa", width: 1, points: { show: false } }));
  const draw = () => {
    plot = new uPlot(
      { width: WIDTH, height: HEIGHT, series: [{}, ...series], scales: { x: { time: false }, y: { distr: 3 } }, legend: { show: false } },
      data,
      element,
    );
  };
  return measured(draw, (min, max) => plot.setScale("x", { min, max }), steps);
}

export async function echartsLines(layers, steps, sampling) {
  const rows = Array.from({ length: layers }, (_, index) => layer(index, steps));
  const element = box();
  let chart;
  const draw = () => {
    chart = echarts.init(element, null, { renderer: "canvas" });
    chart.setOption({
      animation: false,
      xAxis: { type: "value", min: "dataMin", max: "dataMax" },
      yAxis: { type: "log" },
      dataZoom: [{ type: "inside" }],
      series: rows.map((values) => {
        const flat = new Float64Array(steps * 2);
        for (let step = 0; step < steps; step++) {
          flat[2 * step] = step;
          flat[2 * step + 1] = values[step];
        }
        return { type: "line", data: flat, dimensions: ["x", "y"], showSymbol: false, silent: true, sampling };
      }),
    });
  };
  const zoom = (startValue, endValue) => chart.dispatchAction({ type: "dataZoom", startValue, endValue });
  const result = await measured(draw, zoom, steps);
  chart.dispose();
  return result;
}

/** ECharts needs one cell per value; `columns` of them are the columns of the screen. */
export async function echartsHeatmap(layers, columns) {
  const cells = [];
  for (let row = 0; row < layers; row++) {
    const values = layer(row, columns);
    for (let column = 0; column < columns; column++) cells.push([column, row, Math.log10(values[column])]);
  }
  const element = box();
  let chart;
  const axis = (length) => ({ type: "category", data: Array.from({ length }, (_, index) => index) });
  const draw = () => {
    chart = echarts.init(element, null, { renderer: "canvas" });
    chart.setOption({
      animation: false,
      xAxis: axis(columns),
      yAxis: axis(layers),
      dataZoom: [{ type: "inside" }],
      visualMap: { min: -3, max: 0, show: false, inRange: { color: ["#002", "#fe8"] } },
      series: [{ type: "heatmap", data: cells, progressive: 0, silent: true }],
    });
  };
  const zoom = (startValue, endValue) => chart.dispatchAction({ type: "dataZoom", startValue, endValue });
  const result = await measured(draw, zoom, columns);
  chart.dispose();
  return result;
}

/** Pixels of a canvas, from all values: minimum, maximum and mean of each column, then the colour of the mean. */
export async function pixelsHeatmap(layers, steps) {
  const rows = Array.from({ length: layers }, (_, index) => layer(index, steps));
  const colors = Uint32Array.from({ length: 256 }, (_, index) => 0xff000000 | (index << 8) | (255 - index));
  const canvas = document.createElement("canvas");
  canvas.width = WIDTH;
  canvas.height = HEIGHT;
  const element = box();
  const context = canvas.getContext("2d");
  const paint = (from, to) => {
    const image = context.createImageData(WIDTH, HEIGHT);
    const pixels = new Uint32Array(image.data.buffer);
    const line = new Uint32Array(WIDTH);
    for (let row = 0; row < layers; row++) {
      for (let column = 0; column < WIDTH; column++) {
        const first = Math.floor(from + ((to - from) * column) / WIDTH);
        const last = Math.max(first + 1, Math.floor(from + ((to - from) * (column + 1)) / WIDTH));
        let sum = 0;
        for (let step = first; step < last; step++) sum += rows[row][step];
        const share = (Math.log10(sum / (last - first)) + 3) / 3;
        line[column] = colors[Math.max(0, Math.min(255, Math.round(share * 255)))];
      }
      const top = Math.floor((row * HEIGHT) / layers);
      const bottom = Math.max(top + 1, Math.floor(((row + 1) * HEIGHT) / layers));
      for (let y = top; y < bottom; y++) pixels.set(line, y * WIDTH);
    }
    context.putImageData(image, 0, 0);
  };
  const draw = () => {
    element.append(canvas);
    paint(0, steps);
  };
  return measured(draw, (from, to) => paint(from, Math.min(to, steps)), steps);
}
