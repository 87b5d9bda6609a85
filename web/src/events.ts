/** Reader of server-sent events (WHATWG HTML, section 9.2) from a stream of text. */
export class EventReader {
  readonly #emit: (event: string, data: string) => void;
  #rest = "";
  #event = "";
  #data: string[] = [];

  constructor(emit: (event: string, data: string) => void) {
    this.#emit = emit;
  }

  /** Read the next piece of the stream. Pieces may end anywhere. */
  push(piece: string): void {
    const text = this.#rest + piece;
    const complete = text.endsWith("\r") ? text.length - 1 : text.length; // "\r\n" may be split
    const lines = text.slice(0, complete).split(/\r\n|\n|\r/);
    this.#rest = (lines.pop() ?? "") + text.slice(complete);
    for (const line of lines) this.#line(line);
  }

  #line(line: string): void {
    if (line === "") {
      if (this.#data.length > 0) this.#emit(this.#event || "message", this.#data.join("\n"));
      this.#event = "";
      this.#data = [];
      return;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#event = value;
    if (field === "data") this.#data.push(value);
  }
}
