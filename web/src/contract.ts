/**
 * The answers of tdcore/view/answers/, as JSON. The live view fetches them from `api/...`; a report contains them.
 *
 * Numbers that JSON lacks (NaN, infinities) never occur outside of arrays. In arrays they are ordinary elements.
 * An array that is described as f32 has the type "f64" if a number is outside the range of f32: read the type.
 * Texts of a run (names, messages, host names) are untrusted: they go into the page as text only.
 */

/** Elements of an array in little-endian byte order, as base64. */
export interface Packed {
  readonly type: "f32" | "f64" | "i32" | "u8";
  readonly base64: string;
}

export type Mode = "TRAIN" | "EVAL" | "PREDICT" | "GLOBAL";

/** A curve, reduced to at most one point per pixel column. All arrays have the same length. */
export interface Points {
  readonly step: Packed; // f64: first step of the column, in steps of the mode
  readonly mean: Packed; // f32: NaN where the column has no finite value
  readonly min: Packed;
  readonly max: Packed;
  readonly bad: Packed; // i32: number of saved tensors in the column with elements that are NaN or infinite
}

export interface Curve {
  readonly name: string;
  readonly mode: Mode;
  readonly worker: string; // "" for all workers together
  readonly points: Points;
  readonly global_step: Packed; // f64, one per point: global step of `points.step`, to draw several modes on one axis
}

/** A step, in the form in which a training loop counts it. */
export interface At {
  readonly mode: Mode | "SYSTEM"; // "SYSTEM": `step` is the number of a system sample
  readonly mode_step: number;
  readonly step: number; // global
  readonly text: string; // "TRAIN step 40 (epoch 2, global 55)"
}

// api/runs ------------------------------------------------------------------------------------------

export interface Runs {
  readonly folder: string;
  readonly runs: readonly RunLine[];
  readonly can_write: boolean; // whether the buttons "stop" and "capture more" exist
}

export interface RunLine {
  readonly id: string; // for the `run` of all other requests
  readonly name: string;
  readonly status: "running" | "ended" | "died" | "unreadable" | "reading"; // "reading": the other fields are empty
  readonly error: string; // for "unreadable"
  readonly started_ns: number;
  readonly steps: Readonly<Record<string, number>>; // saved steps by mode
  readonly workers: number;
  readonly rows: number;
  readonly findings: number;
}

// api/overview?run ----------------------------------------------------------------------------------

export interface Overview {
  readonly run: RunLine;
  readonly path: string;
  readonly attempts: readonly AttemptLine[];
  readonly losses: readonly Curve[]; // all modes; metrics too
  readonly learning_rates: readonly Curve[];
  readonly findings: readonly Finding[];
  readonly causes: readonly Cause[];
  readonly notices: readonly Notice[]; // data that is missing, drops, gaps, faults, notes of the hook
  readonly cost: Cost | null; // null before the first end file
  readonly verdicts: Readonly<Record<string, number>>; // number of rules by status
}

export interface AttemptLine {
  readonly attempt: number;
  readonly framework: string;
  readonly host: string;
  readonly world_size: number;
  readonly started_ns: number;
  readonly ended_ns: number | null;
  readonly clean: boolean | null; // null: not ended
  readonly reason: string;
}

export interface Finding {
  readonly rule: string;
  readonly code: string;
  readonly at: At;
  readonly last: At;
  readonly count: number;
  readonly worker: string;
  readonly attempt: number;
  readonly tensor: string; // "" for the whole step
  readonly why: string;
  readonly do: string;
}

export interface Cause {
  readonly cause: string;
  readonly confidence: string;
  readonly since: string;
  readonly seen: string;
  readonly tensors: readonly string[];
  readonly explains: readonly string[];
  readonly change: string;
  readonly check: string;
}

export interface Notice {
  readonly level: "lost" | "warning" | "note";
  readonly text: string;
}

export interface Cost {
  readonly capture_seconds: number; // of the training thread
  readonly training_seconds: number | null; // sum of the durations of all steps
  readonly captured_tensors: number;
  readonly captured_bytes: number;
  readonly payload_bytes: number;
  readonly rows: number;
}

// api/curves?run&group&mode&from&to&columns --------------------------------------------------------------

/** The curves of one chart of the overview. Steps are of the mode, and global steps without a mode. */
export interface VisibleCurves {
  readonly group: "losses" | "learning_rates";
  readonly curves: readonly Curve[];
}

// api/layers?run&statistic&kind&mode&worker&from&to&columns&pattern -------------------------------------

export interface Layers {
  readonly statistic: Statistic;
  readonly statistics: readonly Statistic[]; // that the run can show
  readonly kind: string;
  readonly kinds: readonly string[];
  readonly mode: Mode;
  readonly modes: readonly Mode[];
  readonly worker: string; // "" for all workers together
  readonly workers: readonly string[];
  readonly rows: readonly LayerRow[]; // in the order of the model
  readonly first_steps: Packed; // f64, one per column: steps of the mode
  readonly last_steps: Packed;
  readonly mean: Packed; // f32, rows x columns in C order; NaN: no finite value
  readonly min: Packed;
  readonly max: Packed;
  readonly flags: Packed; // u8, rows x columns, bits of CellFlag
  readonly range: readonly [number, number] | null; // of the colour scale; null without values
  readonly outlines: readonly Outline[];
  readonly first_bad: FirstBad | null;
}

export interface Statistic {
  readonly id: string; // "abs_mean", "l2", "std", "update_ratio", "zero_share", "bad_count", "mean", "abs_max", ...
  readonly label: string;
  readonly scale: "log" | "linear" | "share" | "diverging"; // share: 0 to 1; diverging: around 0
}

export enum CellFlag {
  Present = 1,
  Nan = 2,
  Infinite = 4,
  Absent = 8, // the tensor had no value
  Lost = 16, // captured and not stored, or not captured
}

export interface LayerRow {
  readonly name: string;
  readonly kind: string;
  readonly origin: string; // class of the module
  readonly shape: readonly number[];
  readonly dtype: string;
}

export interface Outline {
  readonly row: number;
  readonly first_column: number;
  readonly last_column: number;
  readonly finding: Finding;
}

export interface FirstBad {
  readonly row: number;
  readonly column: number;
  readonly at: At;
  readonly tensor: string;
  readonly text: string; // "gradient/fc1.weight has 12 NaN at TRAIN step 310"
}

// api/tensors?run&pattern ----------------------------------------------------------------------------

export interface Tensors {
  readonly tensors: readonly TensorLine[]; // in the order of the model
}

export interface TensorLine extends LayerRow {
  readonly steps: number;
  readonly has_values: boolean;
  readonly findings: number;
}

// api/tensor?run&name&mode&worker&from&to&columns ------------------------------------------------------

export interface TensorPage {
  readonly tensor: LayerRow;
  readonly mode: Mode;
  readonly modes: readonly Mode[];
  readonly worker: string;
  readonly workers: readonly string[];
  readonly mean: Points; // mean of the elements
  readonly std: Points;
  readonly min: Points; // smallest element
  readonly max: Points;
  readonly l2: Points;
  readonly saved_steps: readonly At[]; // steps with values; at most 1,000, evenly spread
  readonly rows: readonly StatisticsRow[]; // the newest 50
  readonly findings: readonly Finding[];
  readonly absent: string; // why the tensor has no value at the newest step, else ""
}

// api/histogram?run&name&mode&worker&from&to&columns ----------------------------------------------------

export interface TensorHistogram {
  readonly name: string;
  readonly mode: Mode;
  readonly modes: readonly Mode[];
  readonly worker: string;
  readonly quantiles: readonly QuantileCurve[]; // of the magnitudes, from the histograms: within a factor of 2
  readonly histogram: LogHistogram | null;
}

export interface QuantileCurve {
  readonly quantile: number;
  readonly points: Points;
}

/** Shares of the elements by floor(log2(magnitude)), one histogram per pixel column. */
export interface LogHistogram {
  readonly steps: Packed; // f64, columns
  readonly first_exponent: number;
  readonly bins: number;
  readonly shares: Packed; // f32, columns x bins; of all elements
  readonly zero_shares: Packed; // f32, columns
  readonly bad_shares: Packed;
}

export interface StatisticsRow {
  readonly at: At;
  readonly worker: string;
  readonly status: string;
  readonly reason: string;
  readonly values: Readonly<Record<string, number | null>>; // mean, std, min, max, l2, abs_mean, zero_share, ...
}

// api/value?run&name&mode&step&worker ---------------------------------------------------------------------

export interface Value {
  readonly name: string;
  readonly at: At;
  readonly shape: readonly number[];
  readonly dtype: string;
  readonly form: "image" | "heatmap" | "line" | "number";
  readonly height: number;
  readonly width: number;
  readonly channels: number; // 1 or 3; 3 for images only
  readonly data: Packed; // f32, height x width x channels
  readonly shown: string; // the part that is shown: "slice [0, 3] of 64 x 128", "every 4th row"; "" for all
  readonly bad: number; // number of elements that are NaN or infinite
  readonly text: string; // error in words, if the value cannot be read; then data is empty
}

// api/ranks?run&name&statistic&mode&from&to&columns ------------------------------------------------------

export interface Ranks {
  readonly tensor: string;
  readonly candidates: readonly string[]; // tensors that several workers saved
  readonly statistic: Statistic;
  readonly statistics: readonly Statistic[];
  readonly mode: Mode;
  readonly modes: readonly Mode[];
  readonly workers: readonly string[];
  readonly steps: Packed; // f64, columns
  readonly values: Packed; // f32, workers x columns
  readonly deviations: Packed; // f32, workers x columns: in estimated standard deviations from the median
  readonly outliers: readonly { readonly worker: string; readonly at: At; readonly deviation: number }[];
  readonly text: string; // why there is nothing to compare, else ""
}

// api/time?run&worker&from&to&since&until&columns -----------------------------------------------------------------------

export interface Time {
  readonly modes: readonly PhaseTimes[];
  readonly hosts: readonly Host[];
  readonly workers: readonly string[];
  readonly worker: string;
  readonly text: string; // why there is nothing to show, else ""
}

export interface PhaseTimes {
  readonly mode: Mode;
  readonly phases: readonly string[]; // that take any time, the longest first
  readonly seconds: readonly number[]; // in the same order: sum over the run
  readonly steps: Packed; // f64, columns
  readonly milliseconds: Packed; // f32, phases x columns: mean per step
  readonly step: Points; // duration of a step in milliseconds
}

export interface Host {
  readonly host: string;
  readonly series: readonly { readonly name: string; readonly unit: string; readonly points: Points }[];
} // `step` of these points: seconds since the start of the run

// api/compare?runs&name&mode&columns ------------------------------------------------------------------------

export interface Compare {
  readonly runs: readonly RunLine[];
  readonly name: string;
  readonly names: readonly string[]; // that all runs have
  readonly statistic: Statistic;
  readonly statistics: readonly Statistic[];
  readonly mode: Mode;
  readonly modes: readonly Mode[];
  readonly curves: readonly { readonly run: string; readonly points: Points }[];
  readonly differences: readonly { readonly key: string; readonly values: readonly string[] }[]; // of configuration
}

// api/partings?runs --------------------------------------------------------------------------------------

export interface Partings {
  readonly parts: readonly Parting[]; // where a run begins to differ from the first run
}

export interface Parting {
  readonly run: string;
  readonly tensor: string;
  readonly at: At | null; // null: equal as far as both runs go
  readonly text: string;
}

// api/predictions?run&mode&step ------------------------------------------------------------------------------

export interface Predictions {
  readonly text: string; // why there is nothing to show, else ""
  readonly labels: string; // names of the tensors
  readonly predictions: string;
  readonly mode: Mode;
  readonly modes: readonly Mode[];
  readonly first: At | null; // steps that are counted
  readonly last: At | null;
  readonly classes: readonly string[];
  readonly matrix: Packed; // i32, classes (labels) x classes (predictions)
  readonly accuracy: Points;
}

// api/rules?run ----------------------------------------------------------------------------------------------

export interface Rules {
  readonly verdicts: readonly Verdict[];
  readonly judged: "now" | "running" | "stale"; // "running": verdicts are still being computed
}

export interface Verdict {
  readonly rule: string;
  readonly code: string;
  readonly title: string; // first sentence of the rule's page
  readonly status: "no issue" | "issue" | "not evaluable" | "does not apply" | "error" | "in progress";
  readonly text: string;
  readonly judged: number;
  readonly findings: readonly Finding[]; // the first ones
  readonly finding_count: number;
  readonly missing: readonly string[];
  readonly fix: string; // Python code that records the data that the rule lacks
}

// api/events: server-sent events ----------------------------------------------------------------------------

/** Event "run": data of a run has changed. */
export interface RunChanged {
  readonly run: string;
  readonly version: number;
  readonly status: string;
}

// POST api/stop {run, reason}; POST api/capture {run, tensors, steps, level}: {"text": "..."} -----------------

export interface Done {
  readonly text: string;
}

/** The answer to a wrong request, with status 400, 403 or 404. */
export interface Failure {
  readonly error: string;
}

/**
 * The data of a report: answers by request, such as "layers?kind=gradient&mode=TRAIN&run=0&statistic=l2".
 *
 * Key: the name of the request, "?", then the parameters sorted by name, each as `name=value` encoded like
 * encodeURIComponent, joined with "&". Empty values and the parameters `from`, `to`, `since`, `until`, `columns`
 * and `pattern` are left out: a report holds the whole range of steps and all tensors, and the page applies a pattern itself.
 *
 * A request is answered by its exact key, else by the first recorded key of the same name that has all of its
 * parameters. Thus "layers?run=0" is answered by the first recorded heat map: record the default answer first. The
 * page offers a choice (statistic, kind, mode, worker, run, tensor, saved step) only if such a key exists.
 *
 * In the HTML file: <script type="application/json" id="recorded">, whose text is base64 of gzip of this object as
 * JSON in UTF-8. `runs` is recorded under the key "runs?".
 */
export type Recorded = Readonly<Record<string, unknown>>;
