/** Frames around findings: findings of one rule at the same columns of neighbouring lines have one frame. */
import type { Outline } from "../contract.ts";

export interface Frame {
  readonly top: number; // lines of the picture
  readonly bottom: number;
  readonly first: number; // columns
  readonly last: number;
}

/** Frames of outlines. `lines`: line of each shown row. */
export function frames(outlines: readonly Outline[], lines: ReadonlyMap<number, number>): Frame[] {
  const groups = new Map<string, number[]>();
  for (const each of outlines) {
    const line = lines.get(each.row);
    if (line === undefined) continue;
    const key = `${each.first_column} ${each.last_column} ${each.finding.rule}`;
    const group = groups.get(key);
    if (group === undefined) groups.set(key, [line]);
    else group.push(line);
  }
  const result: Frame[] = [];
  for (const [key, group] of groups) {
    const [first, last] = key.split(" ").map(Number) as [number, number];
    group.sort((a, b) => a - b);
    let [top, bottom] = [group[0]!, group[0]!];
    for (const line of group.slice(1)) {
      if (line > bottom + 1) {
        result.push({ top, bottom, first, last });
        top = line;
      }
      bottom = line;
    }
    result.push({ top, bottom, first, last });
  }
  return result;
}
