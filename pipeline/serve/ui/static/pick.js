// Choosing a person, by typing a part of the name.
import { Refused, get } from "./api.js";
import { ask } from "./dialog.js";
import { Somebody, count } from "./face.js";
import { html, useEffect, useRef, useState } from "./html.js";

const SHOWN = 12;
const TYPING_MS = 120;

// The person that the user chose; null where the dialog was left. `without`: the id of one who is not offered. `makes`:
// somebody new can be chosen as well, by name: { name }.
export const pickPerson = (label, without, makes = false) =>
  ask(label, (answer) => html`<${Picker} label=${label} without=${without} makes=${makes} answer=${answer} />`);

function Picker({ label, without, makes, answer }) {
  const [typed, setTyped] = useState("");
  const [found, setFound] = useState(null); // { people, typed }: what was found of what was typed
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  useEffect(() => {
    let wanted = true;
    const timer = setTimeout(async () => {
      const query = { q: typed.trim() || null, sort: "photos", count: SHOWN + 1 };
      const { people } = await get("people", query).catch((error) => {
        if (error instanceof Refused) return { people: [] };
        throw error;
      });
      if (wanted) setFound({ typed, people: people.filter(({ id }) => id !== without).slice(0, SHOWN) });
    }, found ? TYPING_MS : 0);
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [typed]);
  const submit = (event) => {
    event.preventDefault();
    if (found?.people.length && found.typed === typed) answer(found.people[0]); // not one of what was typed before
  };
  const name = makes && typed.trim();
  return html`
    <form onSubmit=${submit}>
      <h2>${label}</h2>
      <input ref=${field} type="search" dir="auto" aria-label="Name" placeholder="Name" value=${typed}
        onInput=${(event) => setTyped(event.currentTarget.value)} />
      <p class="unseen" role="status">${found && count(found.people.length, "person", "people")}</p>
      <ul class="choices">
        ${found?.people.map((person) => html`<li key=${person.id}><button type="button" onClick=${() => answer(person)}>
          <${Somebody} person=${person} />
        </button></li>`)}
        ${name && html`<li><button type="button" onClick=${() => answer({ name })}>
          <span>Somebody new: <bdi dir="auto">${name}</bdi></span>
        </button></li>`}
      </ul>
      ${found && !found.people.length && html`<p class="soft">Nobody fits.</p>`}
      <div class="row"><button type="button" class="plain" onClick=${() => answer(null)}>Cancel</button></div>
    </form>`;
}
