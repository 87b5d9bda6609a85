/** Two or more runs: one tensor overlaid by step, the steps where the runs part, different settings. */
import { useMemo } from "preact/hooks";
import { Lines } from "../charts/lines.tsx";
import type { Series } from "../charts/lines_data.ts";
import type { Mark } from "../charts/lines_plot.ts";
import type { Compare as Answer, Partings } from "../contract.ts";
import { refined } from "../data/decode.ts";
import { count } from "../data/format.ts";
import { Empty, Panel, Scroll, Waiting } from "../parts/controls.tsx";
import { StatisticToolbar } from "../parts/statistic_toolbar.tsx";
import { format } from "../route.ts";
import { type App, setParameters, useAnswer, useApp } from "../state.ts";
import { ink, seriesColor } from "../theme.ts";
import { rangeOf, setRange, useDetail } from "../visible.ts";

const MOST_RUNS = 8;

/** Runs of the address; without any, this run and the first other run of the folder with rows. */
function chosenRuns(app: App): string[] {
  const named = (app.route.parameters.runs ?? "").split(",").filter((each) => each !== "");
  if (named.length > 0) return named;
  const others = app.runs.runs.filter((each) => each.id !== app.run && each.status !== "unreadable");
  const next = others.find((each) => each.rows > 0) ?? others[0];
  return next === undefined ? [app.run] : [app.run, next.id];
}

export function Compare() {
  const app = useApp();
  const runs = chosenRuns(app);
  const { name = "", statistic = "", mode = "" } = app.route.parameters;
  const request = { runs: runs.join(","), name, statistic, mode };
  const enough = runs.length >= 2;
  const { data, error } = useAnswer<Answer>("compare", enough ? request : null, runs);
  const detail = useDetail<Answer>("compare", enough ? request : null, rangeOf(app));
  return (
    <div class="page compare">
      <header class="headline">
        <h1>Compare</h1>
      </header>
      <RunChoice chosen={runs} />
      {!enough && (
        <Empty>
          {app.runs.runs.length < 2
            ? "There is one run here. Open a folder with several runs to compare them: tdcore view FOLDER"
            : "Choose at least two runs."}
        </Empty>
      )}
      {enough && data === null && <Waiting error={error} />}
      {enough && data !== null && (
        <>
          {data.name !== "" && (
            <StatisticToolbar
              page="compare"
              request={request}
              name={data.name}
              names={data.names}
              answer={data}
            />
          )}
          <Content data={data} detail={detail.data} />
        </>
      )}
      {data !== null && error !== "" && (
        <p class="notice warning" role="alert">
          {error}
        </p>
      )}
    </div>
  );
}

function RunChoice({ chosen }: { readonly chosen: readonly string[] }) {
  const app = useApp();
  const lines = app.runs.runs.filter((each) => each.status !== "unreadable");
  if (lines.length < 2 || !app.source.live) return null;
  const toggle = (id: string): void => {
    const next = chosen.includes(id)
      ? chosen.filter((each) => each !== id)
      : [...chosen, id].slice(-MOST_RUNS);
    if (next.length > 0) setParameters(app, { runs: next.join(",") });
  };
  return (
    <fieldset class="run-choice">
      <legend class="choice-label">Runs</legend>
      {lines.map((each) => (
        <label key={each.id}>
          <input type="checkbox" checked={chosen.includes(each.id)} onChange={() => toggle(each.id)} />{" "}
          {each.name}
        </label>
      ))}
    </fieldset>
  );
}

/** detail: the visible steps, more finely. */
function Content({ data, detail }: { readonly data: Answer; readonly detail: Answer | null }) {
  const app = useApp();
  const { theme } = app;
  const ids = data.runs.map((each) => each.id);
  const { data: partings, error } = useAnswer<Partings>("partings", { runs: ids.join(",") }, ids);
  const names = useMemo(() => new Map(data.runs.map((each) => [each.id, each.name])), [data]);
  const series = useMemo<Series[]>(
    () =>
      data.curves.map((curve, index) => {
        const { step, mean, min, max, bad } = refined(curve.points, detail?.curves[index]?.points);
        return {
          label: names.get(curve.run) ?? curve.run,
          color: seriesColor(theme, index),
          step,
          value: mean,
          low: min,
          high: max,
          bad,
        };
      }),
    [data, detail, theme, names],
  );
  const marks = useMemo<Mark[]>(
    () =>
      (partings?.parts ?? []).flatMap((each) =>
        each.at === null || each.at.mode !== data.mode
          ? []
          : [{ step: each.at.mode_step, color: ink(theme).finding, text: each.run }],
      ),
    [data, partings, theme],
  );
  return (
    <>
      <Panel title={data.name === "" ? "No common tensor" : `${data.statistic.label} of ${data.name}`}>
        {data.name === "" ? (
          <Empty>The runs have no tensor with the same name.</Empty>
        ) : (
          <Lines
            label={`${data.statistic.label} of ${data.name}`}
            series={series}
            marks={marks}
            height={300}
            range={rangeOf(app)}
            onRange={(next) => setRange(app, next)}
            xLabel={`${data.mode} step`}
          />
        )}
      </Panel>
      <div class="columns even">
        <Panel title="Where the runs differ" note={`compared with ${data.runs[0]?.name ?? ""}`}>
          {partings === null && <Waiting error={error} />}
          {partings?.parts.map((each) => (
            <p key={each.run}>
              <a href={format({ page: "overview", parameters: { run: each.run } })}>
                {names.get(each.run) ?? each.run}
              </a>
              : {each.text}
            </p>
          ))}
        </Panel>
        <Panel
          title="Different settings"
          note={data.differences.length > 0 ? count(data.differences.length) : undefined}
        >
          {data.differences.length === 0 ? (
            <Empty>The recorded settings of the runs are equal.</Empty>
          ) : (
            <Scroll label="Different settings">
              <table>
                <thead>
                  <tr>
                    <th>Setting</th>
                    {data.runs.map((each) => (
                      <th key={each.id}>{each.name}</th>
                    ))}
                  </tr>
                </thead>
                <tbody>
                  {data.differences.map((each) => (
                    <tr key={each.key}>
                      <td>{each.key}</td>
                      {each.values.map((value, index) => (
                        <td key={index}>{value === "" ? "–" : value}</td>
                      ))}
                    </tr>
                  ))}
                </tbody>
              </table>
            </Scroll>
          )}
        </Panel>
      </div>
    </>
  );
}
