/** Keys of recorded answers. contract.ts has the rule. */

export type Parameters = Readonly<Record<string, string>>;

const LEFT_OUT = new Set(["from", "to", "since", "until", "columns", "pattern"]);

/** Parameters that are part of a key. */
function kept(parameters: Parameters): [string, string][] {
  return Object.entries(parameters).filter(([name, value]) => value !== "" && !LEFT_OUT.has(name));
}

/** Key of a request: "layers?kind=gradient&run=0". */
export function keyOf(name: string, parameters: Parameters): string {
  const pairs = kept(parameters).sort(([first], [second]) => (first < second ? -1 : 1));
  return `${name}?${pairs.map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&")}`;
}

/** The key that answers a request: its own, else the first one of this name that has all of its parameters. */
export function matching(keys: Iterable<string>, name: string, parameters: Parameters): string | null {
  const exact = keyOf(name, parameters);
  const wanted = kept(parameters).map(([key, value]) => `${key}=${encodeURIComponent(value)}`);
  let found: string | null = null;
  for (const key of keys) {
    if (key === exact) return key;
    if (found !== null || !key.startsWith(`${name}?`)) continue;
    const pairs = new Set(key.slice(name.length + 1).split("&"));
    if (wanted.every((pair) => pairs.has(pair))) found = key;
  }
  return found;
}
