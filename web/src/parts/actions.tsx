/** Buttons that write requests into the run of a training: stop, capture more. A dialog confirms each request. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { RunLine, Tensors } from "../contract.ts";
import { counted } from "../data/format.ts";
import { matcher } from "../data/names.ts";
import { useAnswer, useApp } from "../state.ts";
import { Dialog } from "./controls.tsx";

export function Actions({ line }: { readonly line: RunLine | undefined }) {
  const app = useApp();
  const [open, setOpen] = useState<"" | "stop" | "capture">("");
  if (!app.runs.can_write || line === undefined) return null;
  return (
    <>
      {line.status === "running" && (
        <>
          <button type="button" onClick={() => setOpen("capture")}>
            Capture more
          </button>
          <button type="button" class="danger" onClick={() => setOpen("stop")}>
            Stop the training
          </button>
        </>
      )}
      {/* A dialog stays open when the run ends, because it shows the answer to the request. */}
      {open === "stop" && <StopDialog line={line} onClose={() => setOpen("")} />}
      {open === "capture" && <CaptureDialog line={line} onClose={() => setOpen("")} />}
    </>
  );
}

interface DialogProps {
  readonly line: RunLine;
  readonly onClose: () => void;
}

interface RequestDialogProps extends DialogProps {
  readonly title: string;
  readonly name: "stop" | "capture"; // of the request
  readonly body: Readonly<Record<string, unknown>>; // without the run
  readonly button: string;
  readonly danger?: boolean;
  readonly disabled?: boolean;
  readonly about: ComponentChildren;
  readonly children: ComponentChildren; // fields
}

/** A form that sends a request to the training, and shows the answer in words. */
function RequestDialog(props: RequestDialogProps) {
  const { source } = useApp();
  const [text, setText] = useState("");
  const [sent, setSent] = useState(false);
  const submit = (event: Event): void => {
    event.preventDefault();
    setSent(true);
    source.post(props.name, { run: props.line.id, ...props.body }).then(
      (done) => setText(done.text),
      (error: unknown) => {
        setSent(false);
        setText(error instanceof Error ? error.message : String(error));
      },
    );
  };
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      <p>{props.about}</p>
      <form onSubmit={submit}>
        {props.children}
        <p role="status">{text}</p>
        <div class="dialog-buttons">
          <button type="button" onClick={(event) => event.currentTarget.closest("dialog")?.close()}>
            {sent ? "Close" : "Cancel"}
          </button>
          {!sent && (
            <button type="submit" class={props.danger ? "danger" : ""} disabled={props.disabled ?? false}>
              {props.button}
            </button>
          )}
        </div>
      </form>
    </Dialog>
  );
}

function StopDialog({ line, onClose }: DialogProps) {
  const [reason, setReason] = useState("");
  return (
    <RequestDialog
      line={line}
      onClose={onClose}
      title="Stop the training?"
      name="stop"
      body={{ reason }}
      button="Stop the training"
      danger
      about={
        <>
          The training of <b>{line.name}</b> stops at the start of its next step. All workers stop at the same
          step. The data that is already captured is kept.
        </>
      }
    >
      <label>
        Reason, which is stored in the run
        <input
          type="text"
          value={reason}
          maxLength={200}
          onInput={(event) => setReason(event.currentTarget.value)}
        />
      </label>
    </RequestDialog>
  );
}

function CaptureDialog({ line, onClose }: DialogProps) {
  const app = useApp();
  const { data } = useAnswer<Tensors>("tensors", { run: line.id });
  const shown = app.route.page === "tensor" ? app.route.parameters.name : undefined;
  const [pattern, setPattern] = useState(
    shown === undefined ? "^gradient/" : `^${shown.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`,
  );
  const [steps, setSteps] = useState("10");
  const [level, setLevel] = useState("values");
  const { matches, error } = matcher(pattern);
  const tensors = (data?.tensors ?? []).map((each) => each.name).filter(matches);
  return (
    <RequestDialog
      line={line}
      onClose={onClose}
      title="Capture more"
      name="capture"
      body={{ tensors, steps: Number(steps), level, reason: "requested in the view" }}
      button="Capture"
      disabled={tensors.length === 0}
      about={
        <>
          The training of <b>{line.name}</b> captures these tensors at each of its next steps. These steps
          take longer.
        </>
      }
    >
      <label>
        Tensors, as a regular expression over names
        <input
          type="text"
          value={pattern}
          spellcheck={false}
          onInput={(event) => setPattern(event.currentTarget.value)}
        />
      </label>
      <p class="muted" role="status">
        {error === "" ? `${counted(tensors.length, "tensor")}: ${named(tensors)}` : error}
      </p>
      <label>
        Number of steps
        <input
          type="number"
          value={steps}
          min="1"
          max="10000"
          required
          onInput={(event) => setSteps(event.currentTarget.value)}
        />
      </label>
      <label>
        Stored data
        <select value={level} onChange={(event) => setLevel(event.currentTarget.value)}>
          <option value="values">statistics and all values</option>
          <option value="statistics">statistics only</option>
        </select>
      </label>
    </RequestDialog>
  );
}

/** The first names of a list. */
function named(names: readonly string[]): string {
  return `${names.slice(0, 3).join(", ")}${names.length > 3 ? ", …" : ""}`;
}
