// What is in the store, what its threshold is expected to do, and the runs that filled it.
import { Refused, get, session } from "./api.js";
import { say, signOutInTurn } from "./corrections.js";
import { count } from "./face.js";
import { html, useEffect, useState } from "./html.js";
import { usePaged } from "./paged.js";

const UNITS = ["bytes", "KB", "MB", "GB", "TB"];

function size(bytes) {
  const power = Math.min(UNITS.length - 1, bytes > 0 ? Math.floor(Math.log10(bytes) / 3) : 0);
  return `${(bytes / 1000 ** power).toFixed(power > 2 ? 1 : 0)} ${UNITS[power]}`;
}

export const time = (text) => new Date(text).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
export const oneIn = (rate) => `1 in ${Number((1 / rate).toPrecision(2)).toLocaleString("en")}`;

export function Store({ anew }) {
  const [store, setStore] = useState(null);
  const { user } = session.get();
  const runs = usePaged("runs", { count: 50 }, "runs", anew);
  useEffect(() => {
    get("store").then(setStore, (error) => {
      if (!(error instanceof Refused)) throw error;
      say(error.message, true);
    });
  }, [anew]);
  return html`
    <header><h1>Store</h1></header>
    ${store && html`<${Counts} store=${store} /><${Threshold} store=${store} />`}
    <section class="part" aria-labelledby="runs">
      <h2 id="runs">Runs</h2>
      ${runs.done && !runs.items.length
        ? html`<p class="soft">No run has filled this store.</p>`
        : html`<div class="scrolled" tabindex="0" role="region" aria-labelledby="runs"><table>
            <thead><tr><th>Began</th><th>Photos of</th><th>State</th><th class="number">Files</th><th>Report</th></tr></thead>
            <tbody>
              ${runs.items.map((run) => html`<tr key=${run.id}>
                <td>${time(run.startedAt)}</td><td><bdi>${run.source}</bdi></td><td>${run.state}</td>
                <td class="number">${run.rows.toLocaleString("en")}</td>
                <td>${run.report && html`<a href=${run.report} target="_blank" rel="noopener">Open<span class="unseen"> the report of ${time(run.startedAt)}</span></a>`}</td>
              </tr>`)}
            </tbody>
          </table></div>`}
      ${!runs.done && !runs.loading && html`<button onClick=${runs.more}>More</button>`}
    </section>
    <section class="part" aria-labelledby="account">
      <h2 id="account">Account</h2>
      <p><bdi>${user}</bdi></p>
      <button onClick=${signOutInTurn}>Sign out</button>
    </section>`;
}

function Counts({ store }) {
  const numbers = {
    people: store.people, "without a name": store.unnamed, hidden: store.hidden, photos: store.photos,
  };
  const faces = Object.entries(store.faces).map(([outcome, number]) => `${number.toLocaleString("en")} ${outcome}`).join(", ");
  const { model, disk } = store;
  return html`
    <dl class="numbers">
      ${Object.entries(numbers).map(([what, number]) => html`<div><dt>${what}</dt><dd>${number.toLocaleString("en")}</dd></div>`)}
    </dl>
    <dl class="facts">
      <dt>Faces</dt><dd>${faces || "none"}</dd>
      <dt>Pictures</dt><dd>${size(disk.picturesBytes)}, ${size(disk.freeBytes)} free on the disk</dd>
      <dt>Model</dt><dd>${model.embedder}, ${model.weights}, ${model.mode}${model.encrypted && ", encrypted"}</dd>
      ${store.directories.length > 1 &&
      html`<dt>Directories</dt><dd>${store.directories.map(({ name, identities }) => `${name} (${count(identities, "identity", "identities")})`).join(", ")}</dd>`}
    </dl>`;
}

function Threshold({ store }) {
  return html`
    <section class="part" aria-labelledby="threshold">
      <h2 id="threshold">Threshold ${store.threshold.toFixed(3)}</h2>
      <p>${store.expectation}${store.thresholdSet && "; set by a regroup of this directory"}</p>
      ${store.warning && html`<p class="warning">${store.warning}</p>`}
      ${store.unconfirmed && html`<p class="warning">${store.unconfirmed}</p>`}
      ${store.rates.length > 0 &&
      html`<div class="scrolled" tabindex="0" role="region" aria-labelledby="threshold"><table>
        <thead><tr><th>Strangers that match</th><th class="number">Threshold</th></tr></thead>
        <tbody>${store.rates.map(([rate, threshold]) => html`<tr><td>${oneIn(rate)}</td><td class="number">${threshold.toFixed(3)}</td></tr>`)}</tbody>
      </table></div>`}
    </section>`;
}
