/** Keys and gestures. */
import { Dialog } from "./controls.tsx";

const GROUPS: readonly (readonly [string, readonly (readonly [string, string])[]])[] = [
  [
    "Everywhere",
    [
      ["1 … 8", "open a page"],
      ["/", "search for a tensor"],
      ["f", "go to the filter of the page"],
      ["r", "list of runs"],
      ["t", "light or dark"],
      ["?", "this help"],
    ],
  ],
  [
    "Charts and heat map",
    [
      ["drag", "zoom to the selected steps"],
      ["Ctrl + wheel", "zoom around the pointer"],
      ["Shift + wheel", "move along the steps"],
      ["double click, 0", "show all steps"],
      ["+  −", "zoom"],
      ["Shift + ←  →", "move along the steps (line charts: ←  →)"],
    ],
  ],
  [
    "Heat map",
    [
      ["click, Enter", "open the tensor"],
      ["←  →  ↑  ↓", "go to a cell"],
      ["[  ]", "lower and higher rows (also Alt + wheel)"],
      ["Shift + drag", "move"],
      ["Page ↑  Page ↓", "scroll the rows"],
    ],
  ],
];

export function Help({ onClose }: { readonly onClose: () => void }) {
  return (
    <Dialog title="Keys and gestures" onClose={onClose} class="help">
      <div class="help-groups">
        {GROUPS.map(([title, keys]) => (
          <section key={title}>
            <h3>{title}</h3>
            <dl>
              {keys.map(([key, text]) => (
                <div key={key}>
                  <dt>
                    <kbd>{key}</kbd>
                  </dt>
                  <dd>{text}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
      <form method="dialog" class="dialog-buttons">
        <button type="submit">Close</button>
      </form>
    </Dialog>
  );
}
