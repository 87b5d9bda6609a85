/** Sources of answers: the server of the live view, or the answers that a report contains. */
import type { Done, RunChanged } from "./contract.ts";
import { bytesOf } from "./data/decode.ts";
import { EventReader } from "./events.ts";
import { matching, type Parameters } from "./keys.ts";

export interface Source {
  readonly live: boolean;
  /** The answer of a request. Throws an Error whose message is for the reader. */
  get<T>(name: string, parameters: Parameters, signal?: AbortSignal): Promise<T>;
  /** Whether the source can answer a request; a server always can. */
  has(name: string, parameters: Parameters): boolean;
  post(name: "stop" | "capture", body: unknown): Promise<Done>;
  /** Report changes of runs until the returned function is called. `onState`: whether the server is reachable. */
  listen(onChange: (change: RunChanged) => void, onState: (connected: boolean) => void): () => void;
}

const RETRY_MS = [500, 1000, 2000, 5000];

/** The server that sent the page. The addresses of requests are relative, so they contain the token of the page. */
export class Server implements Source {
  readonly live = true;

  has(): boolean {
    return true;
  }

  async get<T>(name: string, parameters: Parameters, signal?: AbortSignal): Promise<T> {
    const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== ""));
    return answer<T>(await reached(fetch(`api/${name}?${query}`, signal === undefined ? {} : { signal })));
  }

  async post(name: string, body: unknown): Promise<Done> {
    const headers = { "Content-Type": "application/json" };
    return answer<Done>(
      await reached(fetch(`api/${name}`, { method: "POST", headers, body: JSON.stringify(body) })),
    );
  }

  listen(onChange: (change: RunChanged) => void, onState: (connected: boolean) => void): () => void {
    const abort = new AbortController();
    void this.#follow(abort.signal, onChange, onState);
    return () => abort.abort();
  }

  async #follow(
    signal: AbortSignal,
    onChange: (change: RunChanged) => void,
    onState: (connected: boolean) => void,
  ): Promise<void> {
    for (let failures = 0; !signal.aborted; failures++) {
      try {
        const response = await fetch("api/events", { signal, cache: "no-store" });
        if (response.ok && response.body !== null) {
          failures = 0;
          onState(true);
          const reader = new EventReader((event, data) => {
            if (event === "run") onChange(JSON.parse(data) as RunChanged);
          });
          for (const stream = response.body.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
            const { done, value } = await stream.read();
            if (done) break;
            reader.push(value);
          }
        }
      } catch {
        // The server is gone, or the page is closed.
      }
      if (signal.aborted) return;
      onState(false);
      await new Promise((wake) => setTimeout(wake, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]));
    }
  }
}

async function reached(response: Promise<Response>): Promise<Response> {
  try {
    return await response;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Error("The server of tdcore view does not answer. Is `tdcore view` still running?");
  }
}

async function answer<T>(response: Response): Promise<T> {
  let body: unknown;
  try {
    body = await response.json();
  } catch {
    throw new Error(`The server answered with status ${response.status} and no JSON.`);
  }
  if (response.ok) return body as T;
  const text = (body as { error?: unknown }).error;
  throw new Error(typeof text === "string" ? text : `The server answered with status ${response.status}.`);
}

/** The answers that a report contains. */
export class Recording implements Source {
  readonly live = false;
  readonly #answers: Map<string, unknown>;

  constructor(answers: Readonly<Record<string, unknown>>) {
    this.#answers = new Map(Object.entries(answers));
  }

  has(name: string, parameters: Parameters): boolean {
    return matching(this.#answers.keys(), name, parameters) !== null;
  }

  get<T>(name: string, parameters: Parameters): Promise<T> {
    const key = matching(this.#answers.keys(), name, parameters);
    if (key === null) {
      const text = "This report does not contain that data. Open the run with `tdcore view` to see it.";
      return Promise.reject(new Error(text));
    }
    return Promise.resolve(this.#answers.get(key) as T);
  }

  post(): Promise<Done> {
    return Promise.reject(new Error("A report cannot control a training."));
  }

  listen(): () => void {
    return () => undefined;
  }
}

/** The source of this page: the recorded answers if there are any, else the server. */
export async function openSource(page: Document): Promise<Source> {
  const element = page.getElementById("recorded");
  if (element === null) return new Server();
  const packed = new Blob([bytesOf((element.textContent ?? "").trim())]);
  const text = await new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).text();
  element.remove();
  return new Recording(JSON.parse(text) as Record<string, unknown>);
}
