/** Labels of the rows of a heat map: names of tensors if there is room, else names of modules. */
import { depth, group, parts } from "../data/names.ts";

export interface Label {
  readonly y: number; // centre, in pixels below the top of the visible part
  readonly prefix: string; // drawn faintly
  readonly text: string;
  readonly top: number; // rows of the label
  readonly bottom: number;
  readonly first: number; // first row
}

const LINE = 12; // pixels that a label needs
const FEW_GROUPS = 6;
const LEAST_GROUP = 5; // average height of groups that get labels

/** Labels of the visible rows. */
export function labels(
  names: readonly string[],
  rowHeight: number,
  scrollTop: number,
  height: number,
): Label[] {
  const first = Math.max(0, Math.floor(scrollTop / rowHeight));
  const last = Math.min(names.length - 1, Math.floor((scrollTop + height) / rowHeight));
  if (last < first) return [];
  return rowHeight >= LINE - 1
    ? rowLabels(names, rowHeight, scrollTop, first, last)
    : groupLabels(names, rowHeight, scrollTop, height, first, last);
}

function rowLabels(
  names: readonly string[],
  rowHeight: number,
  scrollTop: number,
  first: number,
  last: number,
): Label[] {
  const result: Label[] = [];
  for (let row = first; row <= last; row++) {
    const { module, leaf } = parts(names[row]!);
    const top = row * rowHeight - scrollTop;
    result.push({
      y: top + rowHeight / 2,
      prefix: module,
      text: leaf,
      top,
      bottom: top + rowHeight,
      first: row,
    });
  }
  return result;
}

function groupLabels(
  names: readonly string[],
  rowHeight: number,
  scrollTop: number,
  height: number,
  first: number,
  last: number,
): Label[] {
  const level = groupLevel(names, rowHeight);
  const result: Label[] = [];
  let free = Number.NEGATIVE_INFINITY;
  for (const each of groups(names, level)) {
    if (each.last < first || each.first > last) continue;
    const top = each.first * rowHeight - scrollTop;
    const bottom = (each.last + 1) * rowHeight - scrollTop;
    const y = Math.max(LINE / 2, Math.min(height - LINE / 2, (top + bottom) / 2));
    const shown = y - LINE / 2 >= free;
    const text = each.name;
    result.push({ y, prefix: "", text: shown ? text : "", top, bottom, first: each.first });
    if (shown) free = y + LINE / 2;
  }
  return result;
}

/**
 * The deepest level of modules whose groups are high enough on average.
 *
 * If there are few of these groups, the next level; then some of its groups have a label.
 */
export function groupLevel(names: readonly string[], rowHeight: number): number {
  const most = deepest(names);
  let level = most;
  while (level > 1 && (names.length * rowHeight) / groups(names, level).length < LEAST_GROUP) level--;
  return groups(names, level).length < FEW_GROUPS && level < most ? level + 1 : level;
}

const depths = new WeakMap<readonly string[], number>();

/** Number of modules in the longest path. */
function deepest(names: readonly string[]): number {
  const result = depths.get(names) ?? names.reduce((most, name) => Math.max(most, depth(name)), 0);
  depths.set(names, result);
  return result;
}

export interface Group {
  readonly name: string;
  readonly first: number;
  readonly last: number;
}

const known = new WeakMap<readonly string[], Map<number, Group[]>>();

/** Neighbouring rows of the same module. The result is kept for as long as the array of names. */
export function groups(names: readonly string[], level: number): readonly Group[] {
  const levels = known.get(names) ?? new Map<number, Group[]>();
  known.set(names, levels);
  const result = levels.get(level) ?? grouped(names, level);
  levels.set(level, result);
  return result;
}

function grouped(names: readonly string[], level: number): Group[] {
  const result: { name: string; first: number; last: number }[] = [];
  names.forEach((name, row) => {
    const text = group(name, level) || parts(name).leaf;
    const previous = result[result.length - 1];
    if (previous !== undefined && previous.name === text) previous.last = row;
    else result.push({ name: text, first: row, last: row });
  });
  return result;
}
