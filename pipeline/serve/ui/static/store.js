// What is in the store, what its threshold is expected to do, and the runs that filled it.
import { Refused, directory, get, request, session } from "./api.js";
import { inTurn, madeHere, say, signOutInTurn } from "./corrections.js";
import { count, why } from "./face.js";
import { html, useEffect, useState } from "./html.js";
import { usePaged } from "./paged.js";
import { href } from "./router.js";
import { ThresholdSlider } from "./threshold.js";

const UNITS = ["bytes", "KB", "MB", "GB", "TB"];

function size(bytes) {
  const power = Math.min(UNITS.length - 1, bytes > 0 ? Math.floor(Math.log10(bytes) / 3) : 0);
  return `${(bytes / 1000 ** power).toFixed(power > 2 ? 1 : 0)} ${UNITS[power]}`;
}

export const time = (text) => new Date(text).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });

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
    ${store && html`<${Counts} store=${store} /><${Threshold} key=${store.threshold} store=${store} />`}
    <section class="part" aria-labelledby="runs">
      <h2 id="runs">Runs</h2>
      ${runs.done && !runs.items.length
        ? html`<p class="soft">No run has filled this store.</p>`
        : html`<div class="scrolled" tabindex="0" role="region" aria-label="Table of runs"><table>
            <thead><tr><th>Began</th><th>Photos of</th><th>State</th>
              ${Object.keys(NUMBERS).map((what) => html`<th class="number">${what}</th>`)}<th>Report</th></tr></thead>
            <tbody>
              ${runs.items.map((run) => html`<tr key=${run.id}>
                <td>${time(run.startedAt)}</td><td><bdi>${run.source}</bdi></td><td>${run.state}</td>
                ${Object.values(NUMBERS).map((of) => html`<td class="number">${of(run)}</td>`)}
                <td>${run.report
                  ? html`<a href=${run.report} target="_blank" rel="noopener">Open<span class="unseen"> the report of ${time(run.startedAt)}</span></a>`
                  : run.reportHidden ? "not shown here" : "none"}</td>
              </tr>`)}
            </tbody>
          </table></div>`}
      ${runs.items.some(({ report, reportHidden }) => !report && !reportHidden) && html`<p class="soft">Forgetting somebody deletes the reports that show them.</p>`}
      ${!runs.done && !runs.loading && html`<button onClick=${runs.more}>More</button>`}
    </section>
    <section class="part" aria-labelledby="account">
      <h2 id="account">Account</h2>
      <p><bdi>${user}</bdi></p>
      <button onClick=${signOutInTurn}>Sign out</button>
    </section>`;
}

// Of a run, by the heading of its column.
const written = (number) => number?.toLocaleString("en") ?? "–";
const NUMBERS = {
  Photos: (run) => written(run.photos ?? run.rows),
  Faces: (run) => written(run.faces),
  "New people": (run) => written(run.newPeople),
  "Rejected faces": (run) => written(run.rejected),
  Time: ({ seconds }) => (seconds == null ? "–" : duration(seconds)),
};

function duration(seconds) {
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor((seconds % 3600) / 60)];
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min ${Math.round(seconds % 60)} s` : `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
}

const share = (part, all) => (all ? `${((part / all) * 100).toFixed(part && part / all < 0.1 ? 1 : 0)} %` : "none");

const NOBODY = "Of nobody";
const reasons = (counts) => Object.entries(counts).map(([reason, number]) => `${number.toLocaleString("en")} ${why(reason)}`).join(", ");

function Counts({ store }) {
  const { model, disk } = store;
  const numbers = { people: store.people, "without a name": store.unnamed, hidden: store.hidden, photos: store.photos, faces: store.faces };
  const faces = {
    "Of somebody with a name": store.named,
    "Of somebody without": store.faces - store.named - store.unassigned,
    [NOBODY]: store.unassigned,
  };
  return html`
    <dl class="numbers">
      ${Object.entries(numbers).map(([what, number]) => html`<div><dt>${what}</dt><dd>${number.toLocaleString("en")}</dd></div>`)}
    </dl>
    <section class="part" aria-labelledby="faces">
      <h2 id="faces">Faces</h2>
      <div class="shares" aria-hidden="true">${Object.entries(faces).map(([, number]) => html`<span style=${{ flexGrow: number }}></span>`)}</div>
      <dl class="facts">
        ${Object.entries(faces).map(([what, number]) => html`<dt>${what}</dt><dd>
          ${share(number, store.faces)} (${number.toLocaleString("en")})${what === NOBODY && number > 0 &&
          html`: ${reasons(store.unassignedWhy)}. <a href=${href("unassigned")}>Look at them</a>`}
        </dd>`)}
        ${store.rejected > 0 &&
        html`<dt>Too poor to recognise by</dt><dd>${share(store.rejected, store.faces)} (${store.rejected.toLocaleString("en")}):
          ${" "}${reasons(store.rejections)}${Object.keys(store.rejections).length > 1 && "; some for several reasons"}</dd>`}
      </dl>
    </section>
    <dl class="facts">
      <dt>Model</dt><dd>${model.embedder} with the weights ${model.weights}${model.encrypted && ", encrypted"}</dd>
      <dt>Pictures</dt><dd>${size(disk.picturesBytes)}, ${size(disk.freeBytes)} free on the disk</dd>
      ${store.directories.length > 1 &&
      html`<dt>Directories</dt><dd>${store.directories.map(({ name, identities }) => `${name} (${count(identities, "identity", "identities")})`).join(", ")}</dd>`}
    </dl>`;
}


const whole = (number) => Math.round(number).toLocaleString("en");
const about = (number) =>
  number < 1 ? "fewer than 1" : number >= 10 || Number.isInteger(number) ? `about ${whole(number)}` : `about ${Math.floor(number)} or ${Math.ceil(number)}`;

// What the docs of accuracy say, in plain words; `expected`: { wrong: [at least, at most], thresholdForOne? }.
function toExpect(expected) {
  if (!expected) return "How many photos are given to a wrong person is not known: it was not measured for this store.";
  const { wrong: [low, high], thresholdForOne: one } = expected;
  const many = low === high ? about(low) : low ? `more than ${whole(low)}` : `fewer than ${whole(Math.max(high, 1))}`;
  return `Of 1,000 photos of people who are new here, ${many} would be given to a wrong person${one ? `, at a threshold of ${(Math.floor(one * 1000) / 1000).toFixed(3)} about 1` : ""}. Expect more if they look alike, such as families or children.`;
}

// Another threshold: tried out first, then applied to all faces, and for what comes later.
function Threshold({ store }) {
  const [threshold, setThreshold] = useState(store.threshold);
  const [found, setFound] = useState(null); // what that would change
  const [busy, setBusy] = useState(false);
  const choose = (next) => {
    setFound(null);
    setThreshold(next);
  };
  const ask = async (apply) => {
    setBusy(true);
    try {
      const wanted = { threshold: found?.threshold ?? threshold, apply };
      const where = directory.get();
      const send = () => request("POST", "regroup", { json: wanted, where });
      const answer = await (apply ? inTurn(send) : send()); // what only asks holds up no correction
      setFound(apply ? null : answer);
      if (apply && answer.correction != null) madeHere(answer.correction, `All faces were grouped at ${answer.threshold.toFixed(3)}`, where);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      say(error.message, true);
    }
    setBusy(false);
  };
  const changes = found && (found.joined || found.moved || found.new);
  return html`
    <section class="part" aria-labelledby="threshold">
      <h2 id="threshold">Threshold <span class="soft">${store.threshold.toFixed(3)}</span></h2>
      <p>How far apart two faces may be to be one person: lower is stricter.${store.thresholdSet && " It was set for this directory."}${store.remembered && ` (${store.remembered})`}</p>
      <p>${toExpect(store.expected)}</p>
      ${store.warning && html`<p class="warning">${store.warning}</p>`}
      ${store.unconfirmed && html`<p class="warning">${store.unconfirmed}</p>`}
      <div class="tried">
        <${ThresholdSlider} label="Another threshold" rates=${store.rates} own=${store.threshold} threshold=${threshold} onChange=${choose} disabled=${busy} />
        <div class="row">
          <button disabled=${busy} onClick=${() => ask(false)}>What would change?</button>
          ${changes && html`<button class="main" disabled=${busy} onClick=${() => ask(true)}>Group all faces by it</button>`}
        </div>
        <p role="status">${busy ? "Deciding all faces…" : found && (changes
          ? html`${count(found.joined, "person", "people")} would become ${count(found.into, "person", "people")}, ${count(found.moved, "face")} would move,
              ${" "}${count(found.new, "new person", "new people")}${found.averageLink && ", by average link, as the last regroup here"}.
              ${toExpect(found.expected)} What you said yourself stays. It can be undone.`
          : "Nothing would change.")}</p>
      </div>
    </section>`;
}
