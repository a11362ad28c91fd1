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
      : html`<ol class="changes" aria-labelledby="changes">
          ${log.items.map((row) => html`<li key=${row.correction}>
            <div class="spread">
              <span class="clamped" title=${row.text}>
                <bdi>${row.text}</bdi>${row.undoes && ` (number ${row.undoes})`}${row.overrode && ", although a correction said otherwise"}
              </span>
              <small class="soft">Number ${row.correction}, ${time(row.at)}, by ${row.own ? "you" : BY[row.origin]}</small>
            </div>
            ${row.undone
              ? html`<span class="soft">undone</span>`
              : row.canBeUndone && html`<button disabled=${busy} onClick=${() => undoOne(row)}>Undo<span class="unseen"> number ${row.correction}</span></button>`}
          </li>`)}
        </ol>`}
    ${!log.done && !log.loading && html`<button onClick=${log.more}>More</button>`}`;
}
