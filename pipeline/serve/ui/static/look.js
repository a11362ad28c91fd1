// A face on its photo, and adding one that the detector missed.
import { Refused, get } from "./api.js";
import { correct, say, showAnew } from "./corrections.js";
import { ask } from "./dialog.js";
import { Face, nameOf } from "./face.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { askTaken } from "./naming.js";
import { Photo } from "./photo.js";
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

// A dialog with the photo of a face, or the face alone where the photo may not be shown. `notes`: what is known of it.
export async function showFace({ photo, box, picture }, alt, notes) {
  const next = await ask("Photo", (answer) => html`
    ${photo?.picture
      ? html`<${Photo} ...${pictureOf(photo)} boxes=${[{ box }]} />`
      : html`<div class="single"><${Face} src=${picture} alt=${alt} eager /></div>`}
    <p><bdi>${photo ? photo.path ?? photo.name : "This photo was posted; only the face is kept."}</bdi></p>
    <p class="soft">${notes}</p>
    <div class="row">
      ${photo?.picture && html`<button onClick=${() => answer("add")}>Add a face…</button>`}
      <button class="main" onClick=${() => answer(null)}>Close</button>
    </div>`, true);
  if (next === "add") await addFace(photo);
}

const pictureOf = ({ picture, name, width, height }) => ({ src: picture, width, height, alt: `The photo ${name}` });

async function addFace(photo) {
  const box = await ask("Add a face", (answer) => html`<${Drawing} photo=${photo} answer=${answer} />`, true);
  const who = box && (await pickPerson("Who is this?", null, true));
  if (who) await add(photo, box, who, false);
}

// `who`: a person, or the name of somebody new.
async function add(photo, box, who, anyway) {
  let taken = [];
  const wish = { kind: "add_face", photo: photo.id, box, anyway, ...(who.id ? { person: who.id } : { name: who.name }) };
  const answer = await correct(wish, `Added a face of ${nameOf(who)}`, showAnew, (error) => {
    if (error.reason === "name-taken") taken = error.answer.people;
    return taken.length > 0;
  });
  if (answer) {
    showAnew();
    if (answer.tag) say(`Added as a tag, by which nobody is recognised: ${answer.tag}`);
  } else if (taken.length) {
    const choice = await askTaken(who.name, taken, "This is ");
    if (choice) await add(photo, box, choice === "both" ? who : choice, choice === "both");
  }
}

// A photo with all its faces, on which a box is drawn: by dragging, or by the arrow keys.
function Drawing({ photo, answer }) {
  const [{ faces, minSidePx }, setKnown] = useState({ faces: [], minSidePx: 0 });
  const [box, setBox] = useState(null);
  const layer = useRef(null);
  const start = useRef(null);
  useEffect(() => {
    let wanted = true;
    get(`photos/${photo.id}/faces`).then(
      (found) => wanted && setKnown(found),
      (error) => {
        if (!(error instanceof Refused)) throw error; // it can be drawn without the others
      },
    );
    layer.current.focus();
    return () => (wanted = false);
  }, []);
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
    ...faces.map((face) => ({ box: face.box, text: face.name ?? (face.person ? "no name yet" : "?"), kind: face.person ? "known" : "" })),
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
