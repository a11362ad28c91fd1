// Faces that are no person's, the largest first: to say whose they are, or that they are none.
import { ChosenBar, useChosen } from "./chosen.js";
import { Face, count, nameOf, why } from "./face.js";
import { html } from "./html.js";
import { showFace } from "./look.js";
import { correctOrAsk } from "./naming.js";
import { usePaged } from "./paged.js";
import { Choice } from "./people.js";
import { pickPerson } from "./pick.js";
import { change } from "./router.js";
import { WindowedGrid } from "./windowed.js";

const SHOWN = { open: "Unanswered", nobody: "Nobody’s, or no face" };

export function Unassigned({ settings, anew }) {
  const { show = "open" } = settings;
  const list = usePaged("unassigned", { show, count: 120 }, "faces", anew);
  const chosen = useChosen(list.items, show, anew);
  // The chosen faces leave the list: at once on the page, then in the store. Refused or undone, they are back in place.
  const move = async (gone, who, anyway = false) => {
    const left = list.items.filter(({ id }) => gone.has(id));
    list.change((items) => items.filter(({ id }) => !gone.has(id)));
    chosen.clear();
    const to = who?.id ? { persons: [who.id] } : { name: who?.name };
    const wish = { kind: "move", faces: [...gone.keys()], asOf: list.asOf, anyway, ...to };
    const back = () => list.change((items) => [...items, ...left].sort(inOrder));
    const text = `${count(gone.size, "face")}: ${who ? nameOf(who) : "nobody’s, or no face"}`;
    const [, choice] = await correctOrAsk(wish, text, back, "This is ");
    if (choice) move(gone, choice === "both" ? who : choice, choice === "both");
  };
  const look = (place) => showFace(list.items, place, notesOf);
  const key = (event, face, place) => {
    if (event.key !== "p") return;
    event.preventDefault();
    look(place);
  };
  const ofSomebody = async () => {
    const person = await pickPerson("Who is this?", null, true);
    if (person) move(chosen.items, person);
  };

  return html`
    <header>
      <h1>Unassigned ${list.total != null && html`<span class="soft">${list.total.toLocaleString("en")}</span>`}</h1>
      <${Choice} label="Show" values=${SHOWN} value=${show} onChange=${(value) => change({ show: value })} />
    </header>
    <${ChosenBar} chosen=${chosen} label="Chosen faces">
      <button class="main" onClick=${ofSomebody}>This is…</button>
      ${show === "open" && html`<button onClick=${() => move(chosen.items, null)}>Not a face</button>`}
    <//>
    <div aria-busy=${Boolean(list.loading)}>
      ${list.done && !list.items.length && html`<p class="empty">${show === "open" ? "Every face has a person or an answer." : "There is none."}</p>`}
      <${WindowedGrid} items=${list.items} done=${list.done} onEnd=${list.more} label="Faces without a person" onKey=${key}
        draw=${(face, place) => html`
          <li key=${face.id} class="card" aria-setsize=${list.total ?? -1} aria-posinset=${place + 1}>
            <button class="crop" aria-pressed=${chosen.has(face.id)} aria-keyshortcuts="p" onClick=${(event) => chosen.toggle(face, place, event.shiftKey)}>
              <${Face} key=${face.picture} src=${face.picture} alt=${`Face ${place + 1}`} />
            </button>
            <button class="plain about" tabindex="-1" onClick=${() => look(place)}>
              <bdi>${face.photo.name}</bdi><span class="unseen"> of face ${place + 1}</span>
            </button>
            <small class="why">${face.why.map(why).join(", ")}</small>
          </li>`} />
    </div>`;
}

const inOrder = (one, other) => other.size - one.size || one.id - other.id;

const notesOf = ({ id, size, why: reasons }) =>
  `Face ${id}, ${Math.round(size)} px: ${reasons.map(why).join(", ")}.${MORE[reasons[0]] ?? ""}`;
const MORE = {
  unmatched: " The name of its photo is the largest face’s.",
  deleted: " A stricter threshold or an undo took it away.",
};
