/** Small parts that the pages share. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useElementId } from "../state.ts";

interface Option {
  readonly value: string;
  readonly label: string;
}

interface ChoiceProps {
  readonly label: string;
  readonly value: string;
  readonly options: readonly Option[];
  readonly onChange: (value: string) => void;
}

/** A choice of several: buttons for a few options, else a list. A single option is not a choice and is left out. */
export function Choice({ label, value, options, onChange }: ChoiceProps) {
  const id = useElementId();
  if (options.length < 2) return null;
  const letters = options.reduce((sum, each) => sum + each.label.length, 0);
  if (options.length <= 4 && letters <= 32) {
    return (
      <div class="choice" role="group" aria-labelledby={id}>
        <span class="choice-label" id={id}>
          {label}
        </span>
        <span class="segments">
          {options.map((option) => (
            <button
              type="button"
              key={option.value}
              aria-pressed={option.value === value}
              onClick={() => onChange(option.value)}
            >
              {option.label}
            </button>
          ))}
        </span>
      </div>
    );
  }
  return (
    <label class="choice">
      <span class="choice-label">{label}</span>
      <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {options.map((option) => (
          <option value={option.value} key={option.value}>
            {option.label}
          </option>
        ))}
      </select>
    </label>
  );
}

/** Texts as options. */
export function plain(values: readonly string[]): Option[] {
  return values.map((value) => ({ value, label: value }));
}

/** Workers as options, with all of them together first. */
export function workerOptions(workers: readonly string[]): Option[] {
  return workers.length < 2
    ? []
    : [{ value: "", label: "all" }, ...plain(workers.filter((each) => each !== ""))];
}

/** A field for a regular expression over names. */
export function PatternField(props: {
  readonly value: string;
  readonly error: string;
  readonly onInput: (value: string) => void;
}) {
  const id = useElementId();
  return (
    <label class="choice pattern">
      <span class="choice-label">Filter</span>
      <input
        type="search"
        value={props.value}
        placeholder="name or regular expression"
        spellcheck={false}
        data-filter=""
        aria-invalid={props.error !== ""}
        aria-describedby={id}
        onInput={(event) => props.onInput(event.currentTarget.value)}
      />
      <span id={id} class="field-error" role="status">
        {props.error}
      </span>
    </label>
  );
}

export const NO_TENSORS =
  "The run has no saved tensors. While the training runs, they appear after the first saved step.";

/** A box with a heading. */
export function Panel(props: {
  readonly title: string;
  readonly note?: ComponentChildren;
  readonly class?: string;
  readonly children: ComponentChildren;
}) {
  const id = useElementId();
  return (
    <section class={`panel ${props.class ?? ""}`} aria-labelledby={id}>
      <header>
        <h2 id={id}>{props.title}</h2>
        {props.note !== undefined && <span class="panel-note">{props.note}</span>}
      </header>
      {props.children}
    </section>
  );
}

/** The reason why a page or a panel has nothing to show. */
export function Empty({ children }: { readonly children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

/** A table that may be larger than its place. The keys scroll it when it has the focus. */
export function Scroll({
  label,
  children,
}: {
  readonly label: string;
  readonly children: ComponentChildren;
}) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: the keys scroll.
    <section class="table-scroll" aria-label={`Table: ${label}`} tabIndex={0}>
      {children}
    </section>
  );
}

/** State of a request: an error, or nothing yet. */
export function Waiting({ error }: { readonly error: string }) {
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 250);
    return () => clearTimeout(timer);
  }, []);
  if (error !== "")
    return (
      <>
        <h1 class="hidden">Error</h1>
        <p class="empty error" role="alert">
          {error}
        </p>
      </>
    );
  return (
    <p class="empty" role="status">
      {late ? "Reading the run …" : ""}
    </p>
  );
}

/** A text that can be copied. */
export function Code({ text }: { readonly text: string }) {
  const [done, setDone] = useState(false);
  const copy = (): void => {
    void navigator.clipboard?.writeText(text).then(() => {
      setDone(true);
      setTimeout(() => setDone(false), 1500);
    });
  };
  return (
    <div class="code">
      <pre>{text}</pre>
      {navigator.clipboard !== undefined && (
        <button type="button" class="quiet" onClick={copy}>
          {done ? "Copied" : "Copy"}
        </button>
      )}
    </div>
  );
}

/** A modal dialog; it is open while it is on the page. */
export function Dialog(props: {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
  readonly class?: string;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useElementId();
  useEffect(() => {
    ref.current?.showModal();
  }, []);
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: the browser closes a dialog at Escape.
    <dialog
      ref={ref}
      class={props.class}
      aria-labelledby={id}
      onClose={props.onClose}
      onClick={(event) => event.target === ref.current && ref.current?.close()}
    >
      <div class="dialog-body">
        <h2 id={id}>{props.title}</h2>
        {props.children}
      </div>
    </dialog>
  );
}

/** Content that is only built after it was opened. */
export function Disclosure({
  summary,
  children,
}: {
  readonly summary: string;
  readonly children: () => ComponentChildren;
}) {
  const [open, setOpen] = useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{summary}</summary>
      {open && children()}
    </details>
  );
}
