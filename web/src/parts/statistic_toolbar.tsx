/** Choice of tensor, statistic and mode, for the pages that show one statistic of one tensor. */
import type { Statistic } from "../contract.ts";
import type { Parameters } from "../keys.ts";
import { setParameters, useApp } from "../state.ts";
import { Choice, plain } from "./controls.tsx";
import { TensorChoice } from "./tensor_choice.tsx";

interface Props {
  readonly page: string; // name of the request
  readonly request: Parameters;
  readonly name: string; // of the tensor
  readonly names: readonly string[];
  readonly answer: {
    readonly statistic: Statistic;
    readonly statistics: readonly Statistic[];
    readonly mode: string;
    readonly modes: readonly string[];
  };
}

/** Only choices that the source can answer are offered. */
export function StatisticToolbar({ page, request, name, names, answer }: Props) {
  const app = useApp();
  const can = (changes: Parameters): boolean => app.source.has(page, { ...request, ...changes });
  return (
    <div class="toolbar">
      <TensorChoice
        value={name}
        names={names.filter((each) => app.source.live || can({ name: each }))}
        onChange={(next) => setParameters(app, { name: next, statistic: "" })}
      />
      <Choice
        label="Statistic"
        value={answer.statistic.id}
        options={answer.statistics
          .filter((each) => can({ statistic: each.id }))
          .map((each) => ({ value: each.id, label: each.label }))}
        onChange={(next) => setParameters(app, { statistic: next })}
      />
      <Choice
        label="Mode"
        value={answer.mode}
        options={plain(answer.modes.filter((each) => can({ mode: each })))}
        onChange={(next) => setParameters(app, { mode: next })}
      />
    </div>
  );
}
