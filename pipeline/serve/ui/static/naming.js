// The name of a person, as a field over the page: Enter keeps it. Where somebody else has it, the two may be one.
import { correct } from "./corrections.js";
import { ask } from "./dialog.js";
import { Face, Somebody } from "./face.js";
import { html, useRef, useState } from "./html.js";

// `onNamed(name)` shows it at once and returns how to take that back; `onMerge(other)` is asked for where they are one.
export function Naming({ person, asOf, onNamed, onMerge }) {
  const [typed, setTyped] = useState(null); // what the user made of it; null: nothing, or it is kept
  const saved = useRef(0); // how often
  const shown = typed ?? person.name ?? "";
  const name = shown.trim();
  const differs = name !== (person.name ?? "");

  const keep = async (anyway) => {
    const turn = ++saved.current;
    const isLatest = () => turn === saved.current; // else a later name is on its way, which stays
    let taken = [];
    const wish = { kind: "name", persons: [person.id], name, anyway, asOf };
    const text = name ? `Named ${name}` : `Name taken away: ${person.name}`;
    setTyped(null);
    const answer = await correct(wish, text, onNamed(name), (error) => {
      if (error.reason === "name-taken" && isLatest()) taken = error.answer.people;
      return taken.length > 0;
    });
    if (answer || !isLatest()) return;
    setTyped((since) => since ?? name); // a name that the server did not take stays in the field
    if (!taken.length) return;
    const choice = await askTaken(name, taken, "Merge with ", person.picture);
    if (choice === "both") keep(true);
    else if (choice) onMerge(choice);
  };
  const submit = (event) => {
    event.preventDefault();
    if (differs) keep(false);
  };
  return html`
    <form class="naming" onSubmit=${submit}>
      <input dir="auto" aria-label="Name" placeholder="Who is this?" value=${shown} autocomplete="off" spellcheck=${false}
        onInput=${(event) => setTyped(event.currentTarget.value)} />
      ${differs && html`<button class="main">Save</button>`}
    </form>`;
}

// The person that it is, or `both`; null where it was left. `before`: what a button says before who it is; `picture`: of
// whom the name was meant for.
export function askTaken(name, people, before, picture) {
  return ask("This name is taken", (answer) => html`
    <h2><bdi dir="auto">${name}</bdi> is there already</h2>
    <p>Are they one person?</p>
    <ul class="choices">
      ${people.map((other) => html`<li><button onClick=${() => answer(other)}>
        <${Somebody} person=${other} before=${before} />
        ${picture !== undefined && html`<${Face} src=${picture} />`}
      </button></li>`)}
    </ul>
    <div class="row">
      <button class="plain" onClick=${() => answer(null)}>Cancel</button>
      <button onClick=${() => answer("both")}>Two people of that name</button>
    </div>`);
}
