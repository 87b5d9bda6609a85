/** Search of a tensor by words of its name, or by a regular expression. */
import { useMemo, useState } from "preact/hooks";
import type { TensorLine, Tensors } from "../contract.ts";
import { counted, shape } from "../data/format.ts";
import { matcher, rank } from "../data/names.ts";
import { go, useAnswer, useApp } from "../state.ts";
import { Dialog } from "./controls.tsx";

const MOST = 60;

/** Lines that match best. A query with one of ^$|[]()*+\ is a regular expression. */
export function found(lines: readonly TensorLine[], query: string): TensorLine[] {
  const text = query.trim();
  if (text === "") return lines.slice(0, MOST);
  if (/[\^$|[\]()*+\\]/.test(text)) {
    const { matches } = matcher(text);
    return lines.filter((each) => matches(each.name)).slice(0, MOST);
  }
  return lines
    .map((each) => ({ each, quality: rank(text, each.name) }))
    .filter(({ quality }) => quality >= 0)
    .sort((a, b) => b.quality - a.quality)
    .slice(0, MOST)
    .map(({ each }) => each);
}

export function Search({ onClose }: { readonly onClose: () => void }) {
  const app = useApp();
  const { data, error } = useAnswer<Tensors>("tensors", { run: app.run });
  const [query, setQuery] = useState("");
  const [at, setAt] = useState(0);
  const lines = useMemo(() => found(data?.tensors ?? [], query), [data, query]);
  const open = (index: number): void => {
    const chosen = lines[index];
    if (chosen === undefined) return;
    onClose();
    go(app, "tensor", { name: chosen.name });
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (move !== undefined) {
      event.preventDefault();
      const next = Math.max(0, Math.min(lines.length - 1, at + move));
      setAt(next);
      document.getElementById(`found-${next}`)?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter") {
      event.preventDefault();
      open(at);
    }
  };
  return (
    <Dialog title="Search tensors" onClose={onClose} class="search">
      <input
        type="search"
        list={undefined}
        value={query}
        placeholder="words of a name, or a regular expression"
        aria-label="Name"
        // biome-ignore lint/a11y/noRedundantRoles: without a list the role would be searchbox.
        role="combobox"
        aria-expanded="true"
        aria-controls="found"
        aria-activedescendant={`found-${at}`}
        spellcheck={false}
        onKeyDown={onKeyDown}
        onInput={(event) => {
          setQuery(event.currentTarget.value);
          setAt(0);
        }}
      />
      <div id="found" role="listbox" aria-label="Tensors">
        {lines.map((each, index) => (
          <div
            key={each.name}
            id={`found-${index}`}
            role="option"
            aria-selected={index === at}
            tabIndex={-1}
            onPointerMove={() => setAt(index)}
            onClick={() => open(index)}
            onKeyDown={(event) => event.key === "Enter" && open(index)}
          >
            <span>{each.name}</span>
            <span class="muted">
              {each.findings > 0 && <b class="finding-count">{counted(each.findings, "finding")}</b>}
              {shape(each.shape)} · {counted(each.steps, "step")}
              {each.has_values && " · values"}
            </span>
          </div>
        ))}
      </div>
      {error !== "" && <p class="empty error">{error}</p>}
      {data !== null && lines.length === 0 && <p class="empty">No tensor matches.</p>}
      {data !== null && lines.length === MOST && (
        <p class="muted">
          The first {MOST} matches of {data.tensors.length}.
        </p>
      )}
    </Dialog>
  );
}
