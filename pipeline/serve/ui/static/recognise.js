// Who is in a photo: dropped or picked here, compared once; the slider then answers without asking again.
import { Refused, directory, request, session } from "./api.js";
import { Enrol } from "./enrol.js";
import { Face, Name, count } from "./face.js";
import { html, useEffect, useState } from "./html.js";
import { mergePeople } from "./merge.js";
import { NameField } from "./namefield.js";
import { draft, drafts, namePerson } from "./naming.js";
import { observable, useObservable } from "./observable.js";
import { FaceList, Photo, boxesOf } from "./photo.js";
import { href } from "./router.js";
import { ThresholdSlider } from "./threshold.js";

// The photo that was looked at last, as it was left: { where (the directory), file, url, answer?, error?, threshold?, chosen? }.
const kept = observable(null);

// What comes late is of the photo that is still shown, or of none.
function update(url, change) {
  const now = kept.get();
  if (now?.url === url) kept.set({ ...now, ...change(now) });
}

export function Recognise() {
  const last = useObservable(kept);
  const [dragged, setDragged] = useState(false);
  const where = useObservable(directory);
  const shown = last?.where === where ? last : null;

  const look = async (file) => {
    if (!file) return;
    const url = URL.createObjectURL(file);
    if (kept.get()) URL.revokeObjectURL(kept.get().url);
    kept.set({ where, file, url });
    const most = session.get().maxBodyBytes;
    if (file.size > most) return update(url, () => ({ error: `This file is too large: ${count(most, "byte")} at most.` }));
    try {
      const answer = await request("POST", "recognise", { body: file, where, headers: { "Content-Type": "application/octet-stream" } });
      update(url, () => ({ answer }));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      update(url, () => ({ error: error.message }));
    }
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
    ${shown && !shown.error && !shown.answer && html`<${Looking} url=${shown.url} />`}
    ${shown?.answer && html`<${Answer} key=${shown.url} ...${shown} onLook=${(change) => update(shown.url, change)} />`}`;
}

// Of a photo of many faces it takes seconds.
function Looking({ url }) {
  const [seconds, setSeconds] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setSeconds((before) => before + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  return html`
    <div class="looking">
      <img src=${url} alt="The photo" />
      <p class="soft" role="status">Looking for faces…</p>
      <progress aria-label="Looking for faces"></progress>
      <p class="soft" aria-hidden="true">${seconds > 1 && `${seconds} s`}</p>
    </div>`;
}

function Answer({ file, url, answer, threshold = answer.threshold, chosen = 0, onLook }) {
  const { width, height } = answer;
  const faces = answer.faces.map((face) => {
    const match = matchOf(face, threshold);
    return { ...face, match, isKnown: Boolean(face.person), person: match?.person, kind: (match ? "known" : "") + (face.failed.length ? " poor" : "") };
  });
  if (!faces.length) return html`<${Photo} src=${url} width=${width} height=${height} alt="The photo" boxes=${[]} /><p>No face was found.</p>`;
  const choose = (place) => onLook(() => ({ chosen: place }));
  const added = (person) => {
    const before = answer.faces[chosen];
    const show = (face) => onLook((now) => ({ answer: { ...now.answer, faces: now.answer.faces.with(chosen, face) } }));
    show({ ...before, person, similar: [{ person, distance: 0 }, ...before.similar.filter((one) => one.person.id !== person.id)] });
    return () => show(before);
  };
  return html`
    <div class="recognised">
      <div>
        <${Photo} src=${url} width=${width} height=${height} alt="The photo" boxes=${boxesOf(faces, chosen, choose)} />
        <${ThresholdSlider} label="Threshold" rates=${answer.rates} own=${answer.threshold} threshold=${threshold} onChange=${(next) => onLook(() => ({ threshold: next }))} />
        <p role="status" class="soft">${faces.filter(({ match }) => match).length} of ${count(faces.length, "face")} recognised</p>
      </div>
      <div>
        ${faces.length > 1 && html`<${FaceList} faces=${faces} chosen=${chosen} onChoose=${choose} nobody="Nobody known" />`}
        <${OneFace} key=${chosen} place=${chosen} face=${faces[chosen]} match=${faces[chosen].match} threshold=${threshold} file=${file} onAdded=${added}
          onNamed=${(id, name) => onLook((now) => ({ answer: withName(now.answer, id, name) }))} />
      </div>
    </div>`;
}

// The answer with another name of a person.
const withName = (answer, id, name) => {
  const renamed = (person) => (person?.id === id ? { ...person, name: name || undefined } : person);
  const faces = answer.faces.map((face) => ({
    ...face,
    person: renamed(face.person),
    similar: face.similar.map((one) => ({ ...one, person: renamed(one.person) })),
  }));
  return { ...answer, faces };
};

// The most similar person, where it matches at this threshold (docs: the contract's square of the distance).
const matches = (candidate, threshold) => candidate.distance ** 2 <= threshold;
const matchOf = (face, threshold) => face.similar.find((candidate) => matches(candidate, threshold)) ?? null;
const scoreOf = (distance, threshold) => (2 - distance) / (2 - Math.sqrt(threshold));

function OneFace({ place, face, match, threshold, file, onAdded, onNamed }) {
  const typed = useObservable(drafts)[match?.person.id] ?? "";
  const name = () => {
    if (!typed.trim()) return;
    draft(match.person.id);
    const named = (given) => {
      onNamed(match.person.id, given);
      return () => onNamed(match.person.id, "");
    };
    namePerson(match.person, typed.trim(), { asOf: null, onNamed: named, onMerge: merge });
  };
  const merge = async (other) => {
    if (await mergePeople([other, match.person], null, () => () => {})) onNamed(match.person.id, other.name);
  };
  return html`
    <section aria-label=${`Face ${place + 1}`} class="one-face">
      <h2>${match ? html`<a href=${href("person", match.person.id)}><${Name} name=${match.person.name} /></a>` : "Nobody known"}</h2>
      ${match && !match.person.name && html`<${NameField} person=${match.person} value=${typed} placeholder="Who is this?" onValue=${(text) => draft(match.person.id, text)} onName=${name} onPerson=${merge} />`}
      <h3>Most similar</h3>
      <ol class="choices">
        ${face.similar.map(({ person, distance }, at) => html`<li key=${person.id} class=${matches({ distance }, threshold) ? "fits" : ""}>
          <a href=${href("person", person.id)}><${Face} key=${person.picture} src=${person.picture} />
            <span class="spread"><${Name} name=${person.name} unseen=${`number ${at + 1}`} /></span>
            <span class="number">${scoreOf(distance, threshold).toFixed(2)}</span></a>
        </li>`)}
      </ol>
      ${!face.similar.length && html`<p class="soft">There is nobody to compare with.</p>`}
      <${Enrol} face=${face} file=${file} known=${match} onAdded=${onAdded} />
    </section>`;
}
