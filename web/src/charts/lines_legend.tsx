/** Legend of a line chart: names of the lines, their values at the cursor, the step of the cursor. */
import { number, steps } from "../data/format.ts";
import type { Series } from "./lines_data.ts";

/** Whether the chart has one line without a name: its value is shown above it. */
export const unnamed = (series: readonly Series[]): boolean => series.length === 1 && series[0]?.label === "";

interface LegendProps {
  readonly series: readonly Series[];
  readonly steps: readonly number[];
  readonly columns: readonly (readonly (number | null | undefined)[])[];
  readonly cursor: number | null;
  readonly hidden: ReadonlySet<string>;
  readonly unit: string;
  readonly xText: ((x: number) => string) | undefined;
  readonly onToggle: (label: string) => void;
}

export function Legend({ series, steps: all, columns, cursor, hidden, unit, xText, onToggle }: LegendProps) {
  const step = cursor === null ? undefined : all[cursor];
  return (
    <figcaption class="legend">
      {!unnamed(series)
        ? series.map((each, index) => (
            <button
              type="button"
              class="legend-item"
              aria-pressed={!hidden.has(each.label)}
              title="Show or hide this line"
              onClick={() => onToggle(each.label)}
              key={each.label}
            >
              <svg width="16" height="8" aria-hidden="true">
                <line
                  x1="0"
                  x2="16"
                  y1="4"
                  y2="4"
                  stroke={each.color}
                  stroke-width="2.5"
                  stroke-dasharray={each.dash?.join(" ")}
                />
              </svg>
              <span>{each.label}</span>
              {cursor !== null && <b>{valueAt(columns[index * 3], cursor, unit)}</b>}
            </button>
          ))
        : cursor !== null && <b class="legend-item">{valueAt(columns[0], cursor, unit)}</b>}
      <span class="legend-step">
        {step === undefined ? "" : xText === undefined ? steps(step, step) : xText(step)}
      </span>
    </figcaption>
  );
}

/** Value of a column at the cursor, or the last one before it. */
function valueAt(
  column: readonly (number | null | undefined)[] | undefined,
  at: number,
  unit: string,
): string {
  for (let index = at; index >= 0; index--) {
    const value = column?.[index];
    if (value === null) return "no finite value";
    if (value !== undefined) return `${number(value)}${unit === "" ? "" : `\u202f${unit}`}`;
  }
  return "–";
}
