// Everybody as a grid of faces: to look at, find, choose, merge and hide.
import { directory, get } from "./api.js";
import { correct, touched } from "./corrections.js";
import { Face, Name, count, nameOf } from "./face.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { mergePeople } from "./merge.js";
import { usePaged } from "./paged.js";
import { change, href } from "./router.js";
import { WindowedGrid } from "./windowed.js";

const SORTS = { photos: "Most photos", name: "Name", newest: "Newest" };
const SHOWN = { all: "Everybody", unnamed: "Without a name", named: "With a name", hidden: "Hidden" };
const TYPING_MS = 150;

// The grid as it was left for a person, so that one comes back to the same place.
const left = { key: null, list: null, scroll: 0 };

// Returns what shows the people whom corrections changed. Whose answer comes too late for it is asked for the next time.
function useLeft(key, list, show) {
  const now = useRef({ scroll: 0, here: true });
  Object.assign(now.current, { key, list });
  const lookAtTouched = () => {
    for (const id of touched) lookAgain(id, list, show).then(() => now.current.here && touched.delete(id));
  };
  useEffect(() => {
    if (left.key !== key) return;
    lookAtTouched();
    scrollBack(left.scroll);
  }, []);
  useLayoutEffect(() => {
    const scrolled = () => (now.current.scroll = scrollY);
    addEventListener("scroll", scrolled, { passive: true });
    return () => {
      removeEventListener("scroll", scrolled);
      now.current.here = false;
      Object.assign(left, now.current, now.current.list.loading === false ? {} : { key: null });
    };
  }, []);
  return lookAtTouched;
}

async function lookAgain(id, list, show) {
  const person = await get(`people/${id}`).then((answer) => answer.person, () => null); // null: gone
  const stays = person && person.hidden === (show === "hidden");
  list.change((items) => {
    const found = items.flatMap((each) => (each.id !== id ? [each] : stays ? [person] : []));
    return found.filter((each, place) => each !== person || found.findIndex(({ id }) => id === person.id) === place);
  });
}

// Once the rows are there that make the page so long.
function scrollBack(to, tries = 30) {
  scrollTo(0, to);
  if (scrollY < to - 1 && tries) requestAnimationFrame(() => scrollBack(to, tries - 1));
}

export function People({ settings, anew }) {
  const { sort = "photos", show = "all", q = "" } = settings;
  const key = JSON.stringify([directory.get(), sort, show, q, anew]);
  const list = usePaged("people", { sort, show, q: q || null, count: 120 }, "people", anew, left.key === key ? left.list : null);
  const lookAtTouched = useLeft(key, list, show);
  const [chosen, setChosen] = useState(new Map());
  useEffect(() => setChosen(new Map()), [sort, show, q, anew]);

  const toggle = (person) => {
    const next = new Map(chosen);
    if (!next.delete(person.id)) next.set(person.id, person);
    setChosen(next);
  };
  const leave = (gone) => {
    const before = list.items;
    const had = new Set(before.map(({ id }) => id));
    setChosen(new Map());
    list.change((items) => items.filter((person) => !gone.has(person.id)));
    return () => list.change((items) => {
      const now = new Set(items.map(({ id }) => id)); // others came and went meanwhile
      return [...before.filter(({ id }) => now.has(id) || chosen.has(id)), ...items.filter(({ id }) => !had.has(id))];
    });
  };
  const hide = () => {
    const people = [...chosen.values()];
    const [kind, did] = show === "hidden" ? ["unhide", "Shown again"] : ["hide", "Hidden"];
    const wish = { kind, persons: people.map(({ id }) => id), asOf: list.asOf };
    correct(wish, `${did}: ${people.length === 1 ? nameOf(people[0]) : count(people.length, "person", "people")}`, leave(chosen));
  };
  const merge = async () => {
    const merged = await mergePeople([...chosen.values()], list.asOf, (kept, others) => {
      const revert = leave(new Set(others.map(({ id }) => id)));
      const photos = [kept, ...others].reduce((sum, person) => sum + person.photos, 0);
      list.change((items) => items.map((person) => (person.id === kept.id ? { ...kept, photos } : person)));
      return revert;
    });
    if (merged) lookAtTouched();
  };

  return html`
    <header>
      <h1>People ${list.total != null && html`<span class="soft">${list.total.toLocaleString("en")}</span>`}</h1>
      <${Search} q=${q} />
      <${Choice} label="Show" values=${SHOWN} value=${show} onChange=${(value) => change({ show: value })} />
      <${Choice} label="Sort by" values=${SORTS} value=${sort} onChange=${(value) => change({ sort: value })} />
    </header>
    ${chosen.size > 0 &&
    html`<div class="chosen-bar row" role="region" aria-label="Chosen people">
      <strong class="spread" role="status">${chosen.size} chosen</strong>
      ${chosen.size > 1 && html`<button class="main" onClick=${merge}>Merge</button>`}
      <button onClick=${hide}>${show === "hidden" ? "Show again" : "Hide"}</button>
      <button class="plain" onClick=${() => setChosen(new Map())}>Clear</button>
    </div>`}
    <div class=${chosen.size ? "choosing" : ""} aria-busy=${Boolean(list.loading)}>
      ${list.done && !list.items.length && html`<${Nobody} searched=${q || show !== "all"} />`}
      <${WindowedGrid} items=${list.items} done=${list.done} onEnd=${list.more} label="People"
        draw=${(person, place) => html`
          <li key=${person.id} class=${"card" + (chosen.has(person.id) ? " chosen" : "")}
            aria-setsize=${list.total ?? -1} aria-posinset=${place + 1}>
            <a href=${href("person", person.id)}>
              <${Face} src=${person.picture} key=${person.picture} />
              <span class=${"who" + (person.name ? "" : " nameless")}><${Name} name=${person.name} /></span>
              <small>${count(person.photos, "photo")}</small>
            </a>
            <label><input type="checkbox" checked=${chosen.has(person.id)} onChange=${() => toggle(person)} />
              <span class="unseen">Choose ${nameOf(person)}</span>
            </label>
          </li>`} />
    </div>`;
}

const Nobody = ({ searched }) => html`
  <div class="empty">
    ${searched
      ? html`<p>Nobody fits.</p>`
      : html`<p>Nobody is in here yet.</p>
          <p>A run over a folder of photos brings people: <code>facepipe run PHOTOS --store STORE</code>.</p>`}
  </div>`;

function Search({ q }) {
  const timer = useRef(0);
  const typed = (event) => {
    const { value } = event.currentTarget;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => change({ q: value.trim() }), TYPING_MS);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  return html`<input type="search" aria-label="Search by name or id" placeholder="Search" dir="auto"
    defaultValue=${q} onInput=${typed} />`;
}

export const Choice = ({ label, values, value, onChange }) => html`
  <select aria-label=${label} value=${value} onChange=${(event) => onChange(event.currentTarget.value)}>
    ${Object.entries(values).map(([key, text]) => html`<option value=${key}>${text}</option>`)}
  </select>`;
