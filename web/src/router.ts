/** The shown route, and its address. */
import { format, parse, type Route } from "./route.ts";

const LATER_MS = 250; // browsers limit the number of changes of an address

/**
 * The shown route equals the address, except for the changes of the last LATER_MS: a gesture changes the visible steps
 * many times in a second, and the address changes at the end of the gesture.
 */
export class Router {
  #route = parse(location.hash);
  #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #listeners = new Set<(route: Route) => void>();

  constructor() {
    addEventListener("hashchange", () => {
      clearTimeout(this.#timer);
      this.#timer = undefined;
      this.#show(parse(location.hash));
    });
    addEventListener("pagehide", () => this.#write());
  }

  get route(): Route {
    return this.#route;
  }

  /** Open a route, as a new entry of the history. */
  open(route: Route): void {
    this.#write();
    location.hash = format(route);
  }

  /** Change parameters of the shown page without an entry in the history. "" removes a parameter. */
  change(changes: Readonly<Record<string, string>>): void {
    this.#show({ page: this.#route.page, parameters: { ...this.#route.parameters, ...changes } });
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#write(), LATER_MS);
  }

  /** Call `listener` with each new route, until the returned function is called. */
  listen(listener: (route: Route) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #show(route: Route): void {
    this.#route = route;
    for (const listener of this.#listeners) listener(route);
  }

  #write(): void {
    if (this.#timer === undefined) return;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    history.replaceState(null, "", format(this.#route));
  }
}
