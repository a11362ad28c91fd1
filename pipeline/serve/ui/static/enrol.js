// Making a face of the photo at hand a person, or hearing why it is too poor for that.
import { Refused, directory, request, session } from "./api.js";
import { enrolled } from "./corrections.js";
import { html, useState } from "./html.js";
import { href } from "./router.js";

const TOO_POOR = { "center-pose": "it does not look into the camera", sharpness: "it is not sharp enough", contrast: "it has too little contrast" };
const MEASURES = { "center-pose": "centerPose", sharpness: "sharpness", contrast: "contrast" };

const base64 = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));
const list = (texts) => new Intl.ListFormat("en").format(texts);

export function Enrol({ face, file, known }) {
  const [done, setDone] = useState(null); // { text, bad?, person? }
  const [busy, setBusy] = useState(false);
  const required = session.get().personHeaders === "required";
  if (face.failed.length) return html`<${Poor} face=${face} />`;

  const submit = async (event) => {
    event.preventDefault();
    if (busy) return;
    const where = directory.get();
    const form = new FormData(event.currentTarget);
    const name = form.get("name").trim();
    const external = form.get("external")?.trim();
    const headers = { "Content-Type": "application/octet-stream" };
    if (name) headers["X-RPC-PERSON-NAME-BASE64"] = base64(name);
    if (external) headers["X-RPC-EXTERNAL-ID-BASE64"] = base64(external);
    const [x, y, w, h] = face.box;
    setBusy(true);
    try {
      const answer = await request("POST", "enrol", { query: { x: x + w / 2, y: y + h / 2 }, body: file, headers, where });
      setDone(told(answer, name, where));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      setDone({ text: error.message, bad: true });
    }
    setBusy(false);
  };
  return html`
    <details class="enrol" open=${!known}>
      <summary>Enrol this face</summary>
      <form onSubmit=${submit}>
        <label>Name <input name="name" dir="auto" autocomplete="off" required=${required} /></label>
        ${required && html`<label>External id <input name="external" autocomplete="off" required /></label>`}
        <button aria-disabled=${busy}>Enrol</button>
      </form>
    </details>
    <div role="status">
      ${done && html`<p class=${done.bad ? "warning" : ""}>${done.text} ${done.person && html`<a href=${href("person", done.person)}>Look</a>`}</p>`}
    </div>`;
}

function told({ outcome, person, failed }, name, where) {
  if (outcome === "inserted") {
    const text = `Enrolled: ${name || "somebody without a name"}`;
    enrolled(person.id, text, where);
    return { text: `${text}.`, person: person.id };
  }
  if (outcome === "known") return { text: "This person is known already; nobody was added.", person: person?.id };
  if (outcome === "refused") return { text: `Refused: ${list(failed.map((reason) => TOO_POOR[reason] ?? reason))}.`, bad: true };
  return { text: "No face was found there.", bad: true };
}

// The gate's reasons, with what was measured and what is wanted.
function Poor({ face }) {
  const { gate } = session.get();
  return html`
    <div class="warning">
      <p>This face cannot be enrolled: ${list(face.failed.map((reason) => TOO_POOR[reason] ?? reason))}.</p>
      <ul>
        ${face.failed.map((reason) => {
          const measure = MEASURES[reason];
          return html`<li>${reason}: ${face.quality[measure].toFixed(2)}, at least ${gate[measure].toFixed(2)} is wanted</li>`;
        })}
      </ul>
    </div>`;
}
