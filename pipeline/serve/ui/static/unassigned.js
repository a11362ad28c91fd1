// Faces that are no person's, the largest first: to say whose they are, or that they are none.
import { correct } from "./corrections.js";
import { Face, count, nameOf } from "./face.js";
import { html, useEffect, useState } from "./html.js";
import { showFace } from "./look.js";
import { usePaged } from "./paged.js";
import { Choice } from "./people.js";
import { pickPerson } from "./pick.js";
import { change } from "./router.js";
import { WindowedGrid } from "./windowed.js";

const SHOWN = { open: "Unanswered", nobody: "Nobody’s, or no face" };

export function Unassigned({ settings, anew }) {
  const { show = "open" } = settings;
  const list = usePaged("unassigned", { show, count: 120 }, "faces", anew);
  const [chosen, setChosen] = useState(new Set());
  useEffect(() => setChosen(new Set()), [show, anew]);

  const toggle = (face) => {
    const next = new Set(chosen);
    if (!next.delete(face)) next.add(face);
    setChosen(next);
  };
  // The chosen faces leave the list: at once on the page, then in the store. Refused or undone, they are back in place.
  const move = (persons, text) => {
    const left = list.items.filter(({ id }) => chosen.has(id));
    list.change((items) => items.filter(({ id }) => !chosen.has(id)));
    setChosen(new Set());
    const wish = { kind: "move", persons, faces: [...chosen], asOf: list.asOf };
    return correct(wish, `${count(chosen.size, "face")}: ${text}`, () => list.change((items) => [...items, ...left].sort(inOrder)));
  };
  const ofSomebody = async () => {
    const person = await pickPerson("Who is this?");
    if (person) move([person.id], nameOf(person));
  };

  return html`
    <header>
      <h1>Unassigned ${list.total != null && html`<span class="soft">${list.total.toLocaleString("en")}</span>`}</h1>
      <${Choice} label="Show" values=${SHOWN} value=${show} onChange=${(value) => change({ show: value })} />
    </header>
    ${chosen.size > 0 &&
    html`<div class="chosen-bar row" role="region" aria-label="Chosen faces">
      <strong class="spread" role="status">${chosen.size} chosen</strong>
      <button class="main" onClick=${ofSomebody}>This is…</button>
      ${show === "open" && html`<button onClick=${() => move([], "nobody’s, or no face")}>Not a face</button>`}
      <button class="plain" onClick=${() => setChosen(new Set())}>Clear</button>
    </div>`}
    <div aria-busy=${Boolean(list.loading)}>
      ${list.done && !list.items.length && html`<p class="empty">${show === "open" ? "Every face has a person or an answer." : "There is none."}</p>`}
      <${WindowedGrid} items=${list.items} done=${list.done} onEnd=${list.more} label="Faces without a person"
        draw=${(face, place) => html`
          <li key=${face.id} class="card" aria-setsize=${list.total ?? -1} aria-posinset=${place + 1}>
            <button class="crop" aria-pressed=${chosen.has(face.id)} onClick=${() => toggle(face.id)}>
              <${Face} key=${face.picture} src=${face.picture} alt=${`Face ${place + 1}`} />
            </button>
            <small title=${face.reason}>${face.reason}</small>
            <button class="plain about" onClick=${() => showFace(face, `Face ${place + 1}`, notesOf(face))}>
              <bdi>${face.photo.name}</bdi><span class="unseen"> of face ${place + 1}</span>
            </button>
          </li>`} />
    </div>`;
}

const inOrder = (one, other) => other.size - one.size || one.id - other.id;

const notesOf = ({ id, size, reason }) => `Face ${id}, ${Math.round(size)} px: ${reason}.`;
