// Making people one: whose name stays, and what was said against it before.
import { correct } from "./corrections.js";
import { ask, askWhich } from "./dialog.js";
import { Somebody, count, nameOf } from "./face.js";
import { html } from "./html.js";
import { askTaken } from "./naming.js";

// Asks where names differ. `show(kept, others)` shows it at once, and returns how to take that back.
// The server's answer; null where it was refused or left.
// `name`: of all of them from now on; else the one's who stays.
export async function mergePeople(people, asOf, show, name) {
  const kept = name ? { ...most(people), name } : await whoStays(people);
  if (!kept) return null;
  const others = people.filter((person) => person.id !== kept.id);
  // Who was in the store first stands for all, with its own name or none, unless the one that is to stay is said.
  const wish = { kind: "merge", persons: [kept.id, ...others.map(({ id }) => id)], name: kept.name, asOf };
  const merge = async (anyway) => {
    let why = null;
    const answer = await correct({ ...wish, anyway }, mergedText(kept, others), show(kept, others), (error) => {
      if (!anyway && ["stated-two-people", "name-taken"].includes(error.reason)) why = error;
      return Boolean(why);
    });
    if (!why) return answer;
    const choice = why.reason === "name-taken" ? await askTaken(name, why.answer.people, "Merge with ") : await askTwo();
    if (choice?.id) return mergePeople([choice, ...people], asOf, show, choice.name);
    return choice ? merge(true) : null;
  };
  return merge(false);
}

const mergedText = (kept, others) =>
  `Merged ${others.length === 1 ? nameOf(others[0]) : count(others.length, "person", "people")} with ${nameOf(kept)}`;

const askTwo = () =>
  askWhich("Two people", html`<p>It was said that these are two people. Merge them all the same?</p>`, { merge: "Merge them" });

const most = (people) => people.reduce((one, other) => (other.photos > one.photos ? other : one));

// Who has a name stays, else who has the most photos; where there are several names the user says which.
function whoStays(people) {
  const named = people.filter((person) => person.name);
  const names = new Set(named.map((person) => person.name));
  if (names.size < 2) return most(named.length ? named : people);
  return ask("Whose name stays?", (answer) => html`
    <h2>Whose name stays?</h2>
    <ul class="choices">
      ${named.map((person) => html`<li><button onClick=${() => answer(person)}>
        <${Somebody} person=${person} />
      </button></li>`)}
    </ul>
    <div class="row"><button class="plain" onClick=${() => answer(null)}>Cancel</button></div>`);
}
