/** Names of tensors: kind and module path, and patterns over them. */

export interface NameParts {
  readonly kind: string; // "gradient/" or ""
  readonly module: string; // "blocks.3.attn." or ""
  readonly leaf: string; // "weight"
}

/** Split "gradient/blocks.3.attn.weight" into kind, module and leaf. */
export function parts(name: string): NameParts {
  const slash = name.indexOf("/");
  const kind = slash < 0 ? "" : name.slice(0, slash + 1);
  const path = name.slice(kind.length);
  const dot = path.lastIndexOf(".");
  return { kind, module: path.slice(0, dot + 1), leaf: path.slice(dot + 1) };
}

/** Modules of a name at `depth` components: group("gradient/blocks.3.attn.weight", 2) is "blocks.3". */
export function group(name: string, depth: number): string {
  const { module } = parts(name);
  return module.split(".").slice(0, -1).slice(0, depth).join(".");
}

/** Number of modules in the path of a name. */
export function depth(name: string): number {
  return parts(name).module.split(".").length - 1;
}

export interface Matcher {
  readonly error: string; // of a wrong regular expression, else ""
  matches(name: string): boolean;
}

// A part of a pattern that has another meaning in other languages; tdcore/view/answers/names.py has the same list.
const OF_ONE_LANGUAGE =
  /^(?:[^\\]|\\[dDwWsSbBntrfv\W_])*?(?<part>\\[^dDwWsSbBntrfv\W_]|\(\?(?!:)..?|\[\^?\]|\[:|\{,|[*+?}][*+])/s;

/** A pattern is a regular expression that is searched in names; an empty pattern matches every name. */
export function matcher(pattern: string): Matcher {
  if (pattern === "") return { error: "", matches: () => true };
  const part = OF_ONE_LANGUAGE.exec(pattern)?.groups?.part;
  if (part !== undefined) return { error: `"${part}" is not supported in a pattern`, matches: () => false };
  try {
    const expression = new RegExp(pattern);
    return { error: "", matches: (name) => expression.test(name) };
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    return { error: text.replace(/^Invalid regular expression: /, ""), matches: () => false };
  }
}

/**
 * Quality of a match of `query` in `name`, for a search while typing: larger is better, -1 without a match.
 *
 * All words of the query have to occur. Matches at the start of a component of the name are better.
 */
export function rank(query: string, name: string): number {
  const text = name.toLowerCase();
  let total = 0;
  for (const word of query.toLowerCase().split(/\s+/)) {
    const at = text.indexOf(word);
    if (at < 0) return -1;
    total += word.length / text.length + (at === 0 || "./_".includes(text[at - 1]!) ? 1 : 0);
  }
  return total;
}

/**
 * Indexes of `names` with the tensors of a module next to each other.
 *
 * The modules keep the order of their first tensors, the tensors of a module keep their order. Names without a module
 * are modules of their own.
 */
export function byModule(names: readonly string[]): number[] {
  const modules = new Map<string, number[]>();
  names.forEach((name, index) => {
    const { module } = parts(name);
    const key = module === "" ? name : module;
    const list = modules.get(key);
    if (list === undefined) modules.set(key, [index]);
    else list.push(index);
  });
  return [...modules.values()].flat();
}
