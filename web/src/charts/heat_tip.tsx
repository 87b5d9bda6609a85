/** Numbers of the cell under the cursor of a heat map. */
import type { Finding, Layers } from "../contract.ts";
import { number, percent, shape, steps } from "../data/format.ts";
import type { Hover } from "./heat_draw.ts";
import { flagWords } from "./heat_tile.ts";

interface Props {
  readonly answer: Layers;
  readonly hover: Hover | null;
  readonly finding: Finding | null;
  readonly width: number;
  readonly height: number;
}

const WIDTH = 330;

export function HeatTip({ answer, hover, finding, width, height }: Props) {
  const row = hover === null ? undefined : answer.rows[hover.row];
  if (hover === null || row === undefined) return <div id="heat-tip" class="tip" hidden />;
  const { cell } = hover;
  const left = hover.x + 18 + WIDTH > width ? hover.x - 18 - WIDTH : hover.x + 18;
  const place =
    hover.y > height * 0.62 ? { bottom: `${height - hover.y + 12}px` } : { top: `${hover.y + 16}px` };
  const text = answer.statistic.scale === "share" ? percent : number;
  const words = cell === null ? "no saved step" : flagWords(cell.flags);
  const spread = cell !== null && cell.min !== cell.max && Number.isFinite(cell.min);
  return (
    <div
      id="heat-tip"
      class="tip"
      role="status"
      style={{ left: `${Math.max(4, left)}px`, width: `${WIDTH}px`, ...place }}
    >
      <b class="tip-name">{row.name}</b>
      <span class="muted">
        {[row.origin, shape(row.shape), row.dtype].filter((each) => each !== "").join(" · ")}
      </span>
      {cell !== null && (
        <span>
          {answer.mode} {steps(cell.first, cell.last)}
        </span>
      )}
      {cell !== null && Number.isFinite(cell.mean) && (
        <span class="tip-value">
          {answer.statistic.label} <b>{text(cell.mean)}</b>
          {spread && (
            <span class="muted">
              {" "}
              ({text(cell.min)} to {text(cell.max)})
            </span>
          )}
        </span>
      )}
      {words !== "" && <span class="tip-flag">{words}</span>}
      {finding !== null && (
        <span class="tip-finding">
          {finding.rule}: {finding.why}
        </span>
      )}
    </div>
  );
}
