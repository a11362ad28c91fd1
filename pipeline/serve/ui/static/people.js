// Everybody as a grid of faces: to look at, find, choose, merge and hide.
import { directory, get } from "./api.js";
import { ChosenBar, useChosen } from "./chosen.js";
import { correct, heard, touched } from "./corrections.js";
import { Face, Name, count, nameOf, spaced } from "./face.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { mergePeople } from "./merge.js";
import { NameField } from "./namefield.js";
import { draft, drafts, namePerson } from "./naming.js";
import { useObservable } from "./observable.js";
import { usePaged } from "./paged.js";
import { pickPerson } from "./pick.js";
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
  const others = useObservable(heard);
  useEffect(() => {
    if (others) lookAtTouched();
  }, [others]);
  const chosen = useChosen(list.items, sort, show, q, anew);
  const [naming, setNaming] = useState(null); // the id of who is named in the grid
  const typed = useObservable(drafts);
  const textOf = (person) => typed[person.id] ?? spaced(person.name ?? "");
  useEffect(() => setNaming(null), [sort, show, q]);

  // `back`: ids of those who are shown again where it is taken back: the server may keep another record of merged ones.
  const leave = (gone, back = gone) => {
    const before = list.items;
    const had = new Set(before.map(({ id }) => id));
    chosen.clear();
    list.change((items) => items.filter((person) => !gone.has(person.id)));
    return () => list.change((items) => {
      const now = new Map(items.map((person) => [person.id, person])); // others came, went and changed meanwhile
      const again = before.filter(({ id }) => now.has(id) || back.has(id));
      return [...again.map((person) => (back.has(person.id) ? person : now.get(person.id))), ...items.filter(({ id }) => !had.has(id))];
    });
  };
  const hide = () => {
    const people = [...chosen.items.values()];
    const [kind, did] = show === "hidden" ? ["unhide", "Shown again"] : ["hide", "Hidden"];
    const wish = { kind, persons: people.map(({ id }) => id), asOf: list.asOf };
    correct(wish, `${did}: ${people.length === 1 ? nameOf(people[0]) : count(people.length, "person", "people")}`, leave(chosen.items));
  };
  const mergeThese = async (people, name) => {
    const merged = await mergePeople(people, list.asOf, (kept, others) => {
      const revert = leave(new Set(others.map(({ id }) => id)), new Set([kept, ...others].map(({ id }) => id)));
      const photos = [kept, ...others].reduce((sum, person) => sum + person.photos, 0);
      list.change((items) => items.map((person) => (person.id === kept.id ? { ...kept, photos } : person)));
      return revert;
    }, name);
    if (merged) lookAtTouched();
  };
  const named = (person) => (name) => {
    const { name: before, namesakes } = person;
    const show = (shown) => list.change((items) => items.map((each) => (each.id === person.id ? { ...each, ...shown } : each)));
    show({ name: name || undefined, namesakes: undefined });
    return () => show({ name: before, namesakes });
  };
  const nameChosen = async () => {
    const people = [...chosen.items.values()];
    const who = await pickPerson(people.length > 1 ? "Who are they?" : "Who is this?", null, true);
    if (!who) return;
    if (who.id) mergeThese([who, ...people.filter(({ id }) => id !== who.id)]);
    else if (people.length > 1) mergeThese(people, who.name);
    else nameOne(people[0], who.name);
  };
  const nameOne = (person, name) =>
    namePerson(person, name, {
      asOf: list.asOf,
      onNamed: named(person),
      onMerge: (other) => mergeThese([other, person]),
      onRefused: () => setNaming((now) => now ?? person.id),
    });
  const leaveField = (place) => {
    setNaming(null);
    requestAnimationFrame(() => document.querySelector(`li[aria-posinset="${place + 1}"] a`)?.focus());
  };
  // In the grid, whose field goes on to the next one without a name.
  const nameNext = (place) => {
    const next = list.items.find((person, at) => at > place && !person.name);
    if (next) setNaming(next.id);
    else leaveField(place);
  };
  const keepName = (person, place) => {
    const name = textOf(person).trim();
    draft(person.id);
    nameNext(place);
    if (name && name !== spaced(person.name ?? "")) nameOne(person, name);
  };
  const takeOffered = (person, place, other) => {
    draft(person.id);
    nameNext(place);
    mergeThese([other, person]);
  };
  const pressed = (event, person, place) => {
    if (event.key === " " && event.target.closest("a")) chosen.toggle(person, place, event.shiftKey);
    else if (event.key === "n" || event.key === "F2") {
      setNaming(person.id);
      event.target.closest("li").querySelector(".in-grid input")?.focus(); // if it is open already
    } else return;
    event.preventDefault();
  };

  return html`
    <header>
      <h1>People ${list.total != null && html`<span class="soft">${list.total.toLocaleString("en")}</span>`}</h1>
      <${Search} q=${q} />
      <${Choice} label="Show" values=${SHOWN} value=${show} onChange=${(value) => change({ show: value })} />
      <${Choice} label="Sort by" values=${SORTS} value=${sort} onChange=${(value) => change({ sort: value })} />
    </header>
    <${ChosenBar} chosen=${chosen} label="Chosen people">
      <button class="main" onClick=${nameChosen}>Name…</button>
      ${chosen.items.size > 1 && html`<button onClick=${() => mergeThese([...chosen.items.values()])}>Merge</button>`}
      <button onClick=${hide}>${show === "hidden" ? "Show again" : "Hide"}</button>
    <//>
    <div class=${chosen.items.size ? "choosing" : ""} aria-busy=${Boolean(list.loading)}>
      ${list.done && !list.items.length && html`<${Nobody} searched=${q || show !== "all"} />`}
      <${WindowedGrid} items=${list.items} done=${list.done} onEnd=${list.more} label="People" onKey=${pressed}
        reveal=${naming && list.items.findIndex(({ id }) => id === naming)}
        draw=${(person, place) => html`
          <li key=${person.id} class=${"card" + (chosen.has(person.id) ? " chosen" : "")}
            aria-setsize=${list.total ?? -1} aria-posinset=${place + 1}>
            <a href=${href("person", person.id)} aria-keyshortcuts="n Space">
              <${Face} src=${person.picture} key=${person.picture} />
              <span class=${naming === person.id ? "unseen" : "who" + (person.name ? "" : " nameless")}><${Name} name=${person.name} />
                ${!person.name && html`<span class="unseen"> ${place + 1}</span>`}</span>
              ${naming !== person.id && html`<small>${count(person.photos, "photo")}${person.namesakes && `, ${person.namesakes + 1} of this name`}</small>`}
            </a>
            ${naming === person.id
              ? html`<${FieldInGrid} person=${person} value=${textOf(person)} onValue=${(text) => draft(person.id, text)}
                  onName=${() => keepName(person, place)} onPerson=${(other) => takeOffered(person, place, other)}
                  onEscape=${() => {
                    draft(person.id);
                    leaveField(place);
                  }} />`
              : (typed[person.id] || !person.name) && html`<button class=${"plain" + (typed[person.id] ? "" : " name-it")} tabindex="-1" onClick=${() => setNaming(person.id)}>
                  ${typed[person.id] ? html`Not saved: <bdi dir="auto">${typed[person.id]}</bdi>` : "Name"}<span class="unseen"> person ${place + 1}</span>
                </button>`}
            <label><input type="checkbox" tabindex="-1" checked=${chosen.has(person.id)} onClick=${(event) => chosen.toggle(person, place, event.shiftKey)} />
              <span class="unseen">Choose ${nameOf(person)}</span>
            </label>
          </li>`} />
    </div>`;
}

function FieldInGrid(field) {
  const here = useRef(null);
  useLayoutEffect(() => here.current.querySelector("input").focus(), []); // before the next key
  return html`<div ref=${here} class="in-grid"><${NameField} ...${field} label=${`Name of ${nameOf(field.person)}`} placeholder="Who is this?" /></div>`;
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
