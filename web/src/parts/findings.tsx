/** Findings of rules: on a time line, and as cards with the next action. */
import type { Cause, Finding } from "../contract.ts";
import { count, counted, span } from "../data/format.ts";
import { linearTicks, linearTickText } from "../data/ticks.ts";
import { href, useApp, useSize } from "../state.ts";
import { TensorName } from "./tensor_name.tsx";

/** Findings with the same rule and code. */
export interface RuleFindings {
  readonly rule: string;
  readonly code: string;
  readonly findings: readonly Finding[];
}

/** Findings by rule; the rule that fired first comes first. */
export function byRule(findings: readonly Finding[]): RuleFindings[] {
  const groups = new Map<string, Finding[]>();
  for (const each of [...findings].sort((a, b) => a.at.step - b.at.step)) {
    const group = groups.get(each.rule);
    if (group === undefined) groups.set(each.rule, [each]);
    else group.push(each);
  }
  return [...groups].map(([rule, list]) => ({ rule, code: list[0]!.code, findings: list }));
}

/** One row per rule, one bar per finding, by global steps. */
export function FindingLine({
  groups,
  last,
}: {
  readonly groups: readonly RuleFindings[];
  readonly last: number;
}) {
  const app = useApp();
  const [box, width] = useSize<HTMLDivElement>();
  const left = Math.min(width * 0.5, 24 + 7 * Math.max(8, ...groups.map((group) => group.rule.length)));
  const end = Math.max(1, last, ...groups.flatMap((group) => group.findings.map((each) => each.last.step)));
  const x = (step: number): number => left + (step / end) * Math.max(1, width - left - 14);
  const bottom = groups.length * 22 + 4;
  const list = (group: RuleFindings): string =>
    `${group.rule}: ${counted(group.findings.length, "finding")}, first at ${group.findings[0]!.at.text}`;
  return (
    <div class="finding-line" ref={box}>
      <svg
        width={width}
        height={bottom + 22}
        role="group"
        aria-label={`Findings by global step. ${groups.map(list).join("; ")}`}
      >
        {linearTicks(0, end, Math.max(2, (width - left) / 110), true).map((tick) => (
          <g key={tick}>
            <line class="grid" x1={x(tick)} x2={x(tick)} y1="0" y2={bottom} />
            <text class="tick" x={x(tick)} y={bottom + 14} text-anchor="middle">
              {linearTickText(tick)}
            </text>
          </g>
        ))}
        {groups.map((group, index) => (
          <g key={group.rule} transform={`translate(0 ${index * 22})`}>
            <a href={href(app, "rules", { rule: group.rule })}>
              <text class="rule" x={left - 12} y="15" text-anchor="end">
                {group.rule}
              </text>
            </a>
            {group.findings.map((each, at) => (
              <rect
                class="bar"
                key={at}
                x={x(each.at.step)}
                y="4"
                height="14"
                rx="2"
                width={Math.max(4, x(each.last.step) - x(each.at.step))}
              >
                <title>{`${span(each.at, each.last)}${each.tensor === "" ? "" : `, ${each.tensor}`}: ${each.why}`}</title>
              </rect>
            ))}
          </g>
        ))}
      </svg>
    </div>
  );
}

/** One finding: the reason, the place, the next action. */
export function FindingCard(props: {
  readonly finding: Finding;
  readonly rule?: boolean; // show the name of the rule
  readonly tensor?: boolean; // show the name of the tensor
  readonly action?: boolean; // show the next action
}) {
  const { finding, rule = true, tensor = true, action = true } = props;
  return (
    <article class="finding">
      <p class="finding-head">
        {rule && <b>{finding.rule}</b>}
        {tensor && finding.tensor !== "" && (
          <TensorName name={finding.tensor} parameters={{ mode: finding.at.mode }} />
        )}
        <span class="muted">
          {span(finding.at, finding.last)}
          {finding.count > 1 && ` · ${count(finding.count)} times`}
          {finding.worker !== "" && ` · ${finding.worker}`}
        </span>
      </p>
      <p>{finding.why}</p>
      {action && finding.do !== "" && (
        <p class="do">
          <b>Do: </b>
          {finding.do}
        </p>
      )}
    </article>
  );
}

/** A cause that explains several findings. */
export function CauseCard({ cause }: { readonly cause: Cause }) {
  return (
    <article class="cause">
      <h3>{cause.cause}</h3>
      <p class="muted">{[cause.confidence, cause.since].filter((each) => each !== "").join(" · ")}</p>
      <p>{cause.seen}</p>
      {cause.tensors.length > 0 && (
        <p class="names">
          {cause.tensors.slice(0, 4).map((name) => (
            <TensorName name={name} key={name} />
          ))}
          {cause.tensors.length > 4 && <span class="muted">and {count(cause.tensors.length - 4)} more</span>}
        </p>
      )}
      {cause.change !== "" && (
        <p class="do">
          <b>Change: </b>
          {cause.change}
        </p>
      )}
      {cause.check !== "" && (
        <p>
          <b>Check: </b>
          {cause.check}
        </p>
      )}
      {cause.explains.length > 0 && <p class="muted">Explains {cause.explains.join(", ")}</p>}
    </article>
  );
}
