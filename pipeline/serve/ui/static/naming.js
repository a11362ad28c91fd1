// Naming a person: Enter keeps it. Where somebody else has the name, the two may be one.
import { correct } from "./corrections.js";
import { ask } from "./dialog.js";
import { Face, Name, Somebody, isolated, nameOf, spaced } from "./face.js";
import { html, useRef } from "./html.js";
import { NameField } from "./namefield.js";
import { observable, useObservable } from "./observable.js";

// What was typed as somebody's name and is not kept: { the person's id: text }. It survives leaving the field and the view.
export const drafts = observable({});
export const draft = (id, text) => drafts.set({ ...drafts.get(), [id]: text }); // without a text: it is dropped

// `correct`, which asks if the name is another's. [the answer or null, whose the name is: a person, `both`, or null].
export async function correctOrAsk(wish, text, revert, before, picture, isLatest = () => true) {
  let taken = [];
  const answer = await correct(wish, text, revert, (error) => {
    if (error.reason === "name-taken" && isLatest()) taken = error.answer.people;
    return taken.length > 0;
  });
  return [answer, taken.length ? await askTaken(wish.name, taken, before, picture) : null];
}

// `onNamed(name)` shows it at once and returns how to take that back; `onMerge(other)` is asked for where they are one;
// `onRefused()` if the server did not take it, unless by then it is not the latest; then it is the draft.
export async function namePerson(person, name, asked) {
  const { asOf, onNamed, onMerge, onRefused = () => {}, isLatest = () => true, anyway = false } = asked;
  const wish = { kind: "name", persons: [person.id], name, anyway, asOf };
  const text = name ? `Named ${isolated(name)}` : `Name taken away: ${nameOf(person)}`;
  const [answer, choice] = await correctOrAsk(wish, text, onNamed(name), "Merge with ", person.picture, isLatest);
  if (choice === "both") await namePerson(person, name, { ...asked, anyway: true });
  else if (choice) onMerge(choice);
  else if (!answer && isLatest()) {
    if (drafts.get()[person.id] == null) draft(person.id, name);
    onRefused();
  }
}

// The name of a person, as a field over the page.
export function Naming({ person, asOf, onNamed, onMerge }) {
  const saved = useRef(0); // how often
  const known = spaced(person.name ?? "");
  const shown = useObservable(drafts)[person.id] ?? known;
  const name = shown.trim();
  const differs = name !== known;

  const keep = () => {
    if (!differs) return;
    const turn = ++saved.current;
    draft(person.id);
    // If it is not the latest, a later name is on its way, which stays.
    namePerson(person, name, { asOf, onNamed, onMerge, isLatest: () => turn === saved.current });
  };
  const merge = (other) => {
    draft(person.id);
    onMerge(other);
  };
  return html`
    <div class="naming">
      <${NameField} person=${person} value=${shown} placeholder="Who is this?" onValue=${(text) => draft(person.id, text)} onName=${keep} onPerson=${merge}
        onEscape=${() => draft(person.id)} />
      ${differs && html`<button class="main" onClick=${keep}>Save</button>`}
    </div>
    ${differs && person.name && html`<p class="soft">The name is <${Name} name=${person.name} />.</p>`}`;
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
      <button class="plain" autofocus onClick=${() => answer(null)}>Cancel</button>
      <button onClick=${() => answer("both")}>Two people of that name</button>
    </div>`);
}
