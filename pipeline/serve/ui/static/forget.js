// Forgetting a person: it cannot be undone, so it says what goes and wants a word typed.
import { correct } from "./corrections.js";
import { ask } from "./dialog.js";
import { count, nameOf } from "./face.js";
import { html, useEffect, useRef, useState } from "./html.js";

const WORD = "forget";

// True where the person was forgotten.
export async function forgetPerson(person, asOf) {
  let goes = null;
  const wish = { kind: "forget", persons: [person.id], asOf };
  const counted = (error) => error.reason === "confirmation-needed" && Boolean((goes = error.answer));
  await correct(wish, "", () => {}, counted);
  if (!goes) return false;
  const sure = await ask("Forget", (answer) => html`<${Sure} person=${person} goes=${goes} answer=${answer} />`);
  if (!sure) return false;
  return (await correct({ ...wish, confirm: true }, `Forgotten: ${nameOf(person)}`)) != null;
}

function Sure({ person, goes, answer }) {
  const [typed, setTyped] = useState("");
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  const same = typed.trim().toLowerCase() === WORD;
  const submit = (event) => {
    event.preventDefault();
    if (same) answer(true);
  };
  return html`
    <form onSubmit=${submit}>
      <h2>Forget <bdi dir="auto">${nameOf(person)}</bdi>?</h2>
      <p>${count(goes.faces, "face")} will go, with vectors, pictures and names. No later run takes them up again.
        <strong> This cannot be undone.</strong></p>
      <label>Type “${WORD}” to go on
        <input ref=${field} value=${typed} autocomplete="off" autocapitalize="none"
          onInput=${(event) => setTyped(event.currentTarget.value)} />
      </label>
      <div class="row">
        <button type="button" class="plain" onClick=${() => answer(false)}>Cancel</button>
        <button class="danger" disabled=${!same}>Forget for ever</button>
      </div>
    </form>`;
}
