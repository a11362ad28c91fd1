// Making a face of the photo at hand a person, or hearing why it is too poor for that.
import { Refused, directory, request, session } from "./api.js";
import { madeHere } from "./corrections.js";
import { nameOf, why } from "./face.js";
import { html, useState } from "./html.js";
import { askTaken } from "./naming.js";
import { pickPerson } from "./pick.js";
import { href } from "./router.js";

const MEASURES = { "center-pose": "centerPose", sharpness: "sharpness", contrast: "contrast" };

const base64 = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));
const list = (texts) => new Intl.ListFormat("en").format(texts);

// `onAdded(person)` shows whose the face is now, and returns how to take that back.
export function Enrol({ face, file, known, onAdded }) {
  const [done, setDone] = useState(null); // { text, bad?, person? }
  const [busy, setBusy] = useState(false);
  const required = session.get().personHeaders === "required";
  if (face.failed.length) return html`<${Poor} face=${face} />`;

  // `query`: whose the face is; else somebody new.
  const send = async (name, headers, query = {}) => {
    if (busy) return;
    const where = directory.get();
    const [x, y, w, h] = face.box;
    let taken = null;
    setBusy(true);
    try {
      const answer = await request("POST", "enrol", {
        query: { x: x + w / 2, y: y + h / 2, ...query }, body: file, where, headers: { "Content-Type": "application/octet-stream", ...headers },
      });
      const text = (query.person ? "Added to " : "Enrolled: ") + nameOf({ name });
      setDone(told(answer, text));
      if (answer.outcome === "inserted") {
        const back = onAdded(answer.person);
        madeHere(answer.correction, text, where, () => {
          back();
          setDone(null);
        });
      }
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (error.reason === "name-taken") taken = error.answer.people;
      else setDone({ text: error.message, bad: true });
    }
    setBusy(false);
    const choice = taken && (await askTaken(name, taken, "This is "));
    if (choice === "both") await send(name, headers, { anyway: true });
    else if (choice) await send(choice.name, {}, { person: choice.id });
  };
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const name = form.get("name").trim();
    const external = form.get("external")?.trim();
    send(name, {
      ...(name && { "X-RPC-PERSON-NAME-BASE64": base64(name) }),
      ...(external && { "X-RPC-EXTERNAL-ID-BASE64": base64(external) }),
    });
  };
  const addTo = async () => {
    const person = await pickPerson("Whose face is this?");
    if (person) send(person.name, {}, { person: person.id });
  };
  return html`
    <details class="enrol" open=${!known}>
      <summary>Enrol this face</summary>
      <form onSubmit=${submit}>
        <label>Name <input name="name" dir="auto" autocomplete="off" required=${required} /></label>
        ${required && html`<label>External id <input name="external" autocomplete="off" required aria-describedby="external-id" />
          <small id="external-id" class="soft">Your own key for the person, such as a number of staff. This server requires one.</small></label>`}
        <span class="row">
          <button aria-disabled=${busy}>Enrol</button>
          ${!face.isKnown && html`<button type="button" aria-disabled=${busy} onClick=${addTo}>This is…</button>`}
        </span>
      </form>
    </details>
    <div role="status">
      ${done && html`<p class=${done.bad ? "warning" : ""}>${done.text} ${done.person && html`<a href=${href("person", done.person)}>Look</a>`}</p>`}
    </div>`;
}

function told({ outcome, person, failed }, text) {
  if (outcome === "inserted") return { text: `${text}.`, person: person.id };
  if (outcome === "known") return { text: "This person is known already; nobody was added.", person: person?.id };
  if (outcome === "refused") return { text: `Refused: ${list(failed.map(why))}.`, bad: true };
  return { text: "No face was found there.", bad: true };
}

// The gate's reasons, with what was measured and what is wanted.
function Poor({ face }) {
  const { gate } = session.get();
  return html`
    <div class="warning">
      <p>This face cannot be enrolled: ${list(face.failed.map(why))}.</p>
      <ul>
        ${face.failed.map((reason) => {
          const measure = MEASURES[reason];
          return html`<li>${why(reason)}: ${face.quality[measure].toFixed(2)}, at least ${gate[measure].toFixed(2)} is wanted</li>`;
        })}
      </ul>
    </div>`;
}
