/** Where the time goes: phases of steps, and system metrics of the hosts. */
import { useMemo, useState } from "preact/hooks";
import { Lines } from "../charts/lines.tsx";
import type { Series } from "../charts/lines_data.ts";
import { PhaseChart } from "../charts/phases.tsx";
import type { Time as Answer, Host, PhaseTimes, Points } from "../contract.ts";
import { refined } from "../data/decode.ts";
import { duration, percent } from "../data/format.ts";
import type { Range } from "../data/range.ts";
import type { Parameters } from "../keys.ts";
import { Choice, Empty, Panel, plain, Waiting } from "../parts/controls.tsx";
import { setParameters, useAnswer, useApp } from "../state.ts";
import { seriesColor } from "../theme.ts";
import { useDetail } from "../visible.ts";
import { sentence } from "./ranks.tsx";

export function Time() {
  const app = useApp();
  const request = { run: app.run, worker: app.route.parameters.worker ?? "" };
  const { data, error } = useAnswer<Answer>("time", request);
  if (data === null) return <Waiting error={error} />;
  return (
    <div class="page time">
      <header class="headline">
        <h1>Time</h1>
      </header>
      <div class="toolbar">
        <Choice
          label="Worker"
          value={data.worker}
          options={plain(data.workers).filter(({ value }) =>
            app.source.has("time", { ...request, worker: value }),
          )}
          onChange={(worker) => setParameters(app, { worker })}
        />
      </div>
      {data.text !== "" && <Empty>{sentence(data.text)}</Empty>}
      {data.modes.map((each) => (
        <Phases key={each.mode} times={each} request={request} />
      ))}
      {data.hosts.map((each) => (
        <HostPanel key={each.host} host={each} request={request} />
      ))}
      {data.text === "" && data.hosts.length === 0 && (
        <Empty>
          The run has no samples of the machine: they are recorded every second by the process that writes the
          run, unless they are switched off.
        </Empty>
      )}
    </div>
  );
}

function Phases({ times, request }: { readonly times: PhaseTimes; readonly request: Parameters }) {
  const { theme } = useApp();
  const [range, setRange] = useState<Range | null>(null);
  const detail = useDetail<Answer>("time", request, range).data;
  const fine = detail?.modes.find((each) => each.mode === times.mode);
  const total = times.seconds.reduce((sum, each) => sum + each, 0);
  const duration_ = useMemo<Series[]>(() => {
    const { step, mean, min, max } = refined(times.step, fine?.step);
    return [{ label: "", color: seriesColor(theme, 0), step, value: mean, low: min, high: max }];
  }, [times, fine, theme]);
  return (
    <Panel title={`Steps of ${times.mode}`} note={`${duration(total)} in all phases`}>
      <div class="columns phases">
        <table class="phase-table">
          <thead>
            <tr>
              <th>Phase</th>
              <th class="num">Time</th>
              <th class="num">Share</th>
            </tr>
          </thead>
          <tbody>
            {times.phases.map((phase, index) => (
              <tr key={phase}>
                <td>
                  <span class="dot" style={{ background: seriesColor(theme, index) }} />
                  {phase.replaceAll("_", " ")}
                </td>
                <td class="num">{duration(times.seconds[index]!)}</td>
                <td class="num">{percent(times.seconds[index]! / total)}</td>
              </tr>
            ))}
          </tbody>
        </table>
        <div>
          <PhaseChart times={times} range={range} />
          <h3>Duration of a step</h3>
          <Lines
            label={`Duration of steps of ${times.mode}`}
            series={duration_}
            height={150}
            unit="ms"
            range={range}
            onRange={setRange}
            xLabel={`${times.mode} step`}
          />
        </div>
      </div>
    </Panel>
  );
}

const SECONDS = { names: ["since", "until"] } as const;

function HostPanel({ host, request }: { readonly host: Host; readonly request: Parameters }) {
  const { theme } = useApp();
  const [range, setRange] = useState<Range | null>(null);
  const detail = useDetail<Answer>("time", request, range, SECONDS).data;
  const fine = detail?.hosts.find((each) => each.host === host.host);
  return (
    <Panel title={host.host} note="seconds since the start of the run">
      <div class="small-multiples">
        {host.series.map((each, index) => (
          <HostChart
            key={each.name}
            name={each.name}
            unit={each.unit}
            points={each.points}
            detail={fine?.series.find(({ name }) => name === each.name)?.points}
            color={seriesColor(theme, index)}
            range={range}
            onRange={setRange}
            sync={host.host}
          />
        ))}
      </div>
    </Panel>
  );
}

interface HostChartProps {
  readonly name: string;
  readonly unit: string;
  readonly points: Points;
  readonly detail: Points | undefined;
  readonly color: string;
  readonly range: Range | null;
  readonly onRange: (range: Range | null) => void;
  readonly sync: string;
}

function HostChart({ name, unit, points, detail, color, range, onRange, sync }: HostChartProps) {
  const series = useMemo<Series[]>(() => {
    const { step, mean, min, max } = refined(points, detail);
    return [{ label: "", color, step, value: mean, low: min, high: max, width: 1.25 }];
  }, [points, detail, color]);
  return (
    <div>
      <h3>
        {name}
        {unit !== "" && <span class="muted"> {unit}</span>}
      </h3>
      <Lines
        label={`${name} in ${unit}`}
        series={series}
        y="linear"
        height={120}
        unit={unit}
        range={range}
        onRange={onRange}
        sync={`host ${sync}`}
        xText={(seconds) => `after ${duration(seconds)}`}
      />
    </div>
  );
}
