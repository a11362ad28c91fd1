// The corrections that were made, the last first, each with its undo.
import { pending, undoOne } from "./corrections.js";
import { html } from "./html.js";
import { useObservable } from "./observable.js";
import { usePaged } from "./paged.js";
import { time } from "./store.js";

const BY = { user: "a user", api: "a program", label: "a label", run: "a run" };

export function Changes({ anew }) {
  const log = usePaged("corrections", { count: 50 }, "corrections", anew);
  const busy = useObservable(pending) > 0;
  return html`
    <header><h1 id="changes">Changes</h1></header>
    ${log.done && !log.items.length
      ? html`<p class="soft">Nothing was changed in this directory.</p>`
      : html`<div class="scrolled" tabindex="0" role="region" aria-labelledby="changes"><table>
          <thead><tr><th class="number">Number</th><th>When</th><th>What</th><th>By</th><th>Undo</th></tr></thead>
          <tbody>
            ${log.items.map((row) => html`<tr key=${row.correction}>
              <td class="number">${row.correction}</td><td>${time(row.at)}</td>
              <td><bdi>${row.text}</bdi>${row.undoes && ` (number ${row.undoes})`}${row.overrode && ", although a correction said otherwise"}</td>
              <td>${row.own ? "you" : BY[row.origin]}</td>
              <td>${row.undone
                ? "undone"
                : row.canBeUndone && html`<button disabled=${busy} onClick=${() => undoOne(row)}>Undo<span class="unseen"> number ${row.correction}</span></button>`}</td>
            </tr>`)}
          </tbody>
        </table></div>`}
    ${!log.done && !log.loading && html`<button onClick=${log.more}>More</button>`}`;
}
