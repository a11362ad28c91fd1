// Who is in a photo: dropped or picked here, compared once; the slider then answers without asking again.
import { Refused, request, session } from "./api.js";
import { Enrol } from "./enrol.js";
import { Face, Name, count, nameOf } from "./face.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Photo } from "./photo.js";
import { href } from "./router.js";
import { oneIn } from "./store.js";

const STEPS = 1000; // of the slider

export function Recognise() {
  const [shown, setShown] = useState(null); // { file, url, answer?, error? }
  const [dragged, setDragged] = useState(false);
  const turn = useRef(0);
  useEffect(() => () => shown && URL.revokeObjectURL(shown.url), [shown?.url]);

  const look = async (file) => {
    if (!file) return;
    const mine = ++turn.current;
    const photo = { file, url: URL.createObjectURL(file) };
    const most = session.get().maxBodyBytes;
    if (file.size > most) return setShown({ ...photo, error: `This file is too large: ${count(most, "byte")} at most.` });
    setShown(photo);
    let more;
    try {
      more = { answer: await request("POST", "recognise", { body: file, headers: { "Content-Type": "application/octet-stream" } }) };
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      more = { error: error.message };
    }
    if (mine === turn.current) setShown({ ...photo, ...more });
    return undefined;
  };
  const over = (event) => {
    event.preventDefault();
    setDragged(event.type === "dragover");
  };
  const drop = (event) => {
    over(event);
    look(event.dataTransfer.files[0]);
  };
  const pick = ({ currentTarget }) => {
    look(currentTarget.files[0]);
    currentTarget.value = ""; // the same one can be picked again
  };
  useEffect(() => {
    const paste = (event) => look(event.clipboardData?.files[0]);
    const missed = (event) => event.preventDefault(); // beside the field the browser would open the file instead of the page
    const heard = { paste, dragover: missed, drop: missed };
    for (const [what, handler] of Object.entries(heard)) addEventListener(what, handler);
    return () => Object.entries(heard).forEach(([what, handler]) => removeEventListener(what, handler));
  }, []);
  return html`
    <header><h1>Recognise</h1></header>
    <div class=${"drop" + (dragged ? " dragged" : "") + (shown ? " small" : "")} onDragOver=${over} onDragLeave=${over} onDrop=${drop}>
      <label class="button main">${shown ? "Another photo" : "Pick a photo"}
        <input class="unseen" type="file" accept="image/*,.heic,.heif,.avif" onChange=${pick} />
      </label>
      <span class="soft">or drop or paste one here. It is compared, and not kept.</span>
    </div>
    <div role="alert">${shown?.error && html`<p class="warning">${shown.error}</p>`}</div>
    ${shown && !shown.error && !shown.answer && html`<p class="soft" role="status">Looking…</p>`}
    ${shown?.answer && html`<${Answer} key=${shown.url} ...${shown} />`}`;
}

function Answer({ file, url, answer }) {
  const { faces, width, height } = answer;
  const [threshold, setThreshold] = useState(answer.threshold);
  const [chosen, setChosen] = useState(0);
  const found = faces.map((face) => matchOf(face, threshold));
  if (!faces.length) return html`<${Photo} src=${url} width=${width} height=${height} alt="The photo" boxes=${[]} /><p>No face was found.</p>`;
  const boxes = faces.map(({ box }, place) => ({
    box,
    label: `Face ${place + 1}: ${found[place] ? nameOf(found[place].person) : "nobody known"}`,
    text: found[place]?.person.name ?? (found[place] ? "no name yet" : "?"),
    kind: (found[place] ? "known" : "") + (faces[place].failed.length ? " poor" : ""),
    chosen: place === chosen,
    onChoose: () => setChosen(place),
  }));
  return html`
    <div class="recognised">
      <div>
        <${Photo} src=${url} width=${width} height=${height} alt="The photo" boxes=${boxes} />
        <${Slider} answer=${answer} threshold=${threshold} onChange=${setThreshold} />
        <p role="status" class="soft">${found.filter(Boolean).length} of ${count(faces.length, "face")} recognised</p>
      </div>
      <${OneFace} key=${chosen} place=${chosen} face=${faces[chosen]} match=${found[chosen]} threshold=${threshold} file=${file} />
    </div>`;
}

// The most similar person, where it matches at this threshold (docs: the contract's square of the distance).
const matches = (candidate, threshold) => candidate.distance ** 2 <= threshold;
const matchOf = (face, threshold) => face.similar.find((candidate) => matches(candidate, threshold)) ?? null;
const scoreOf = (distance, threshold) => (2 - distance) / (2 - Math.sqrt(threshold));

function Slider({ answer, threshold, onChange }) {
  const { rates } = answer;
  const most = Math.max(answer.threshold, rates.at(-1)?.[1] ?? 0) * 1.25;
  const least = Math.min(answer.threshold, rates[0]?.[1] ?? 0) / 2;
  const atMost = rates.find(([, limit]) => limit >= threshold); // the rate that this threshold keeps to
  const told = atMost ? `at most ${oneIn(atMost[0])} strangers would match` : rates.length ? `more than ${oneIn(rates.at(-1)[0])} strangers would match` : "";
  const at = Math.round(((threshold - least) / (most - least)) * STEPS);
  return html`
    <div class="slider">
      <span class="row"><span class="spread">Threshold <strong>${threshold.toFixed(3)}</strong> <span class="soft">${told}</span></span>
        ${threshold !== answer.threshold && html`<button class="plain" onClick=${() => onChange(answer.threshold)}>Back to the store’s</button>`}
      </span>
      <input type="range" min="0" max=${STEPS} value=${at} aria-label="Threshold" aria-valuetext=${`${threshold.toFixed(3)} ${told}`}
        onInput=${(event) => onChange(least + (event.currentTarget.valueAsNumber / STEPS) * (most - least))} />
      <span class="row soft"><span class="spread">strict</span><span>lax</span></span>
    </div>`;
}

function OneFace({ place, face, match, threshold, file }) {
  return html`
    <section aria-label=${`Face ${place + 1}`} class="one-face">
      <h2>${match ? html`<a href=${href("person", match.person.id)}><${Name} name=${match.person.name} /></a>` : "Nobody known"}</h2>
      <h3>Most similar</h3>
      <ol class="choices">
        ${face.similar.map(({ person, distance }) => html`<li key=${person.id} class=${matches({ distance }, threshold) ? "fits" : ""}>
          <a href=${href("person", person.id)}><${Face} key=${person.picture} src=${person.picture} />
            <span class="spread"><${Name} name=${person.name} /></span>
            <span class="number">${scoreOf(distance, threshold).toFixed(2)}</span></a>
        </li>`)}
      </ol>
      ${!face.similar.length && html`<p class="soft">There is nobody to compare with.</p>`}
      <${Enrol} face=${face} file=${file} known=${match} />
    </section>`;
}
