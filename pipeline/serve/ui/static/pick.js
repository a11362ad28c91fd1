// Choosing a person, by typing a part of the name.
import { ask } from "./dialog.js";
import { Somebody, count } from "./face.js";
import { html, useEffect, useState } from "./html.js";
import { findPeople } from "./namefield.js";

const SHOWN = 12;
const TYPING_MS = 120;

// The person that the user chose; null where the dialog was left. `without`: the id of one who is not offered. `makes`:
// somebody new can be chosen as well, by name: { name }.
export const pickPerson = (label, without, makes = false) =>
  ask(label, (answer) => html`<${Picker} label=${label} without=${without} makes=${makes} answer=${answer} />`);

function Picker({ label, without, makes, answer }) {
  const [typed, setTyped] = useState("");
  const [found, setFound] = useState(null); // { people, typed }: what was found of what was typed
  useEffect(() => {
    let wanted = true;
    const timer = setTimeout(async () => {
      const people = await findPeople(typed.trim(), without, SHOWN);
      if (wanted) setFound({ typed, people });
    }, found ? TYPING_MS : 0);
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [typed]);
  const name = makes && typed.trim();
  const submit = async (event) => {
    event.preventDefault();
    const people = found?.typed === typed ? found.people : await findPeople(typed.trim(), without, SHOWN);
    const first = people[0] ?? (name && { name });
    if (first) answer(first);
  };
  const key = (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const all = [...event.currentTarget.querySelectorAll("input, .choices button")];
    all[all.indexOf(document.activeElement) + by]?.focus();
  };
  return html`
    <form onSubmit=${submit} onKeyDown=${key}>
      <h2>${label}</h2>
      <input autofocus type="search" dir="auto" aria-label="Name" placeholder="Name" value=${typed}
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
      ${found && !found.people.length && !name && html`<p class="soft">Nobody fits.</p>`}
      <div class="row"><button type="button" class="plain" onClick=${() => answer(null)}>Cancel</button></div>
    </form>`;
}
