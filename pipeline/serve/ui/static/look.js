// A face on its photo, and adding one that the detector missed.
import { get, quietly } from "./api.js";
import { say, showAnew } from "./corrections.js";
import { ask } from "./dialog.js";
import { Face, nameOf, spaced } from "./face.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { correctOrAsk } from "./naming.js";
import { FaceList, Photo, boxesOf } from "./photo.js";
import { pickPerson } from "./pick.js";

const STEP = 0.02; // of the photo: by which a key moves or sizes the box
const FIRST = [0.4, 0.4, 0.2, 0.2];
const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const within = (value, most = 1) => Math.min(Math.max(value, 0), most);
const between = ([x, y], [u, v]) => [Math.min(x, u), Math.min(y, v), Math.abs(x - u), Math.abs(y - v)];
const pressed = ([x, y, w, h], [dx, dy], sizes) =>
  sizes
    ? [x, y, within(w + dx * STEP, 1 - x), within(h + dy * STEP, 1 - y)]
    : [within(x + dx * STEP, 1 - w), within(y + dy * STEP, 1 - h), w, h];

// A dialog with the photo of one of these faces, or the face alone where the photo may not be shown; arrow keys go to the
// next one. `notesOf(face)`: what is known of it.
export async function showFace(faces, place, notesOf) {
  const photo = await ask("Photo", (answer) => html`<${Viewer} faces=${faces} first=${place} notesOf=${notesOf} answer=${answer} />`, true);
  if (photo) await addFace(photo);
}

const useFacesOf = (photo) => {
  const [known, setKnown] = useState(null);
  useEffect(() => {
    let wanted = true;
    setKnown(null);
    if (photo?.picture)
      quietly(get(`photos/${photo.id}/faces`)).then((found) => wanted && found && setKnown({ ...found, of: photo.id }));
    return () => (wanted = false);
  }, [photo?.id]);
  return known?.of === photo?.id ? known : null;
};

const asOnPhoto = (face) => ({ ...face, person: face.person && { id: face.person, name: face.name } });

function Viewer({ faces, first, notesOf, answer }) {
  const [place, setPlace] = useState(first);
  const [other, setOther] = useState(null); // which of the photo's faces was pointed out
  const face = faces[place];
  const { photo } = face;
  const known = useFacesOf(photo);
  const all = (known?.faces ?? []).filter(({ box }) => box).sort((one, next) => one.box[0] - next.box[0]).map(asOnPhoto);
  const shown = all.length ? all : face.box ? [{ box: face.box }] : [];
  const chosen = other ?? shown.findIndex(({ id }) => id === face.id);
  const step = (by) => {
    if (!faces[place + by]) return;
    setOther(null);
    setPlace(place + by);
  };
  const key = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) step(by);
  };
  return html`
    <div onKeyDown=${key}>
      ${photo?.picture
        ? html`<div class="recognised">
            <${Photo} key=${photo.id} ...${pictureOf(photo)} boxes=${all.length ? boxesOf(all, chosen, setOther) : shown} />
            ${all.length > 0 && html`<${FaceList} faces=${all} chosen=${chosen} onChoose=${setOther} nobody="Nobody’s" />`}
          </div>`
        : html`<div class="single"><${Face} key=${face.id} src=${face.picture} alt="The face" eager /></div>`}
      <p class="clamped"><bdi>${photo ? photo.path ?? photo.name : "This photo was posted; only the face is kept."}</bdi>
        ${photo?.takenAt && html`<span class="soft"> ${day(photo.takenAt)}</span>`}</p>
      <p class="soft clamped" aria-live="polite">${notesOf(face, place)}</p>
      <div class="row">
        ${faces.length > 1 && html`
          <button aria-keyshortcuts="ArrowLeft" disabled=${!faces[place - 1]} onClick=${() => step(-1)}>Previous</button>
          <button aria-keyshortcuts="ArrowRight" disabled=${!faces[place + 1]} onClick=${() => step(1)}>Next</button>`}
        ${photo?.picture && html`<button onClick=${() => answer(photo)}>Add a face…</button>`}
        <button class="main" autofocus onClick=${() => answer(null)}>Close</button>
      </div>
    </div>`;
}

// When a photo was taken: the camera's local time, without a zone.
const day = (text) => new Date(`${text.slice(0, 10)}T12:00`).toLocaleDateString("en-GB", { dateStyle: "long" });

const pictureOf = ({ picture, name, width, height }) => ({ src: picture, width, height, alt: `The photo ${name}` });

async function addFace(photo) {
  const box = await ask("Add a face", (answer) => html`<${Drawing} photo=${photo} answer=${answer} />`, true);
  const who = box && (await pickPerson("Who is this?", null, true));
  if (who) await add(photo, box, who, false);
}

// `who`: a person, or the name of somebody new.
async function add(photo, box, who, anyway) {
  const wish = { kind: "add_face", photo: photo.id, box, anyway, ...(who.id ? { person: who.id } : { name: who.name }) };
  const [answer, choice] = await correctOrAsk(wish, `Added a face of ${nameOf(who)}`, showAnew, "This is ");
  if (choice) await add(photo, box, choice === "both" ? who : choice, choice === "both");
  if (!answer) return;
  showAnew();
  if (answer.tag) say(`Added as a tag, by which nobody is recognised: ${answer.tag}`);
}

// A photo with all its faces, on which a box is drawn: by dragging, or by the arrow keys.
function Drawing({ photo, answer }) {
  const { faces = [], minSidePx = 0 } = useFacesOf(photo) ?? {};
  const [box, setBox] = useState(null);
  const layer = useRef(null);
  const start = useRef(null);
  useEffect(() => layer.current.focus(), []);
  const at = ({ clientX, clientY }) => {
    const { left, top, width, height } = layer.current.getBoundingClientRect();
    return [within((clientX - left) / width), within((clientY - top) / height)];
  };
  const down = (event) => {
    if (event.button) return;
    layer.current.setPointerCapture(event.pointerId);
    start.current = at(event);
    setBox(null);
  };
  const move = (event) => start.current && setBox(between(start.current, at(event)));
  const up = () => (start.current = null);
  const key = (event) => {
    const way = KEYS[event.key];
    if (!way) return;
    event.preventDefault();
    setBox((now) => (now ? pressed(now, way, event.shiftKey) : FIRST));
  };
  const fits = box && box[2] * photo.width >= minSidePx && box[3] * photo.height >= minSidePx;
  const boxes = [
    ...faces.map(({ box: own, name, person }) => ({ box: own, text: name && spaced(name), kind: person ? "known" : "" })),
    ...(box ? [{ box, kind: "new" }] : []),
  ];
  return html`
    <h2>Add a face</h2>
    <p class="soft">Drag a box around the face. The arrow keys move the box, with Shift they size it.</p>
    <${Photo} ...${pictureOf(photo)} boxes=${boxes}>
      <div ref=${layer} class="draw" tabindex="0" role="application" aria-label="Draw a box around the face"
        onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerCancel=${up} onKeyDown=${key}></div>
    <//>
    <p class="soft" role="status">${box && !fits && `A box has sides of at least ${minSidePx} px.`}</p>
    <div class="row">
      <button class="plain" onClick=${() => answer(null)}>Cancel</button>
      <button class="main" disabled=${!fits} onClick=${() => answer(box)}>Who is this?</button>
    </div>`;
}
