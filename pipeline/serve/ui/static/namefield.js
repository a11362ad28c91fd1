// A field for the name of somebody: it offers the people of that name while one types, and who it looks like before.
import { get, quietly } from "./api.js";
import { Somebody, spaced } from "./face.js";
import { html, useEffect, useId, useRef, useState } from "./html.js";

const SHOWN = 6;
const TYPING_MS = 120;

// People with a name whom a person may be, the likeliest first.
async function looksLike(person) {
  const { pairs } = (await quietly(get("review", { person: person.id, count: 20 }))) ?? { pairs: [] };
  const others = pairs.map(({ one, other }) => (one.id === person.id ? other : one));
  return others.filter(({ name }) => name).slice(0, 3);
}

// People on most photos who fit what is typed.
export async function findPeople(typed, without, count, show = "all") {
  const found = await quietly(get("people", { q: typed || null, show, sort: "photos", count: count + 1 }));
  return (found?.people ?? []).filter(({ id }) => id !== without).slice(0, count);
}

// `value`, `onValue`: what is typed. `onName()`: Enter keeps it; `onPerson(person)`: one of those offered was chosen.
// `person`: whose name it is. `onEscape()`: left where nothing is offered.
export function NameField({ value, onValue, onName, onPerson, onEscape, person, label = "Name", ...field }) {
  const [offered, setOffered] = useState([]);
  const [chosen, setChosen] = useState(null); // by the arrows, among those offered: an id, whatever list comes after
  const [open, setOpen] = useState(false);
  const [atEnd, setAtEnd] = useState(false); // of the screen: the list grows to the other side
  const input = useRef(null);
  const list = useId();
  const typed = value.trim();
  const isNew = typed !== spaced(person?.name ?? "").trim();

  useEffect(() => {
    if (!open) return undefined;
    let wanted = true;
    const found = (people) => {
      if (wanted) setOffered(people);
    };
    const timer = setTimeout(() => {
      if (typed && isNew) findPeople(typed, person?.id, SHOWN, "named").then(found);
      else if (person && !person.name) looksLike(person).then(found);
      else found([]);
    }, typed ? TYPING_MS : 0);
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [open, typed, person?.id]);

  const people = open ? offered : [];
  const active = people.findIndex(({ id }) => id === chosen);
  const move = (place) => people.length && setChosen(people[place].id);
  const offer = () => {
    setOpen(true);
    setChosen(null);
  };
  const choose = (one) => {
    setOpen(false);
    onPerson(one);
  };
  const keys = {
    ArrowDown: () => move((active + 1) % people.length),
    ArrowUp: () => move(active <= 0 ? people.length - 1 : active - 1),
    Enter: () => {
      if (people[active]) return choose(people[active]);
      setOpen(false);
      return onName();
    },
    Escape: () => {
      if (people.length) setOpen(false);
      else onEscape?.();
    },
  };
  const press = (event) => {
    const pressed = !event.isComposing && Object.hasOwn(keys, event.key) && keys[event.key];
    event.stopPropagation(); // no key of the view
    if (!pressed || (event.key === "Escape" && !people.length && !onEscape)) return;
    event.preventDefault();
    pressed();
  };
  return html`
    <span class="name-field">
      <input ref=${input} dir="auto" role="combobox" autocomplete="off" spellcheck=${false} aria-label=${label} value=${value}
        aria-expanded=${people.length > 0} aria-autocomplete="list" aria-controls=${list}
        aria-activedescendant=${people[active] ? `${list}-${active}` : null} ...${field}
        onFocus=${({ currentTarget }) => {
          const { left, right } = currentTarget.getBoundingClientRect();
          setAtEnd(left + right > innerWidth);
          offer();
        }} onBlur=${() => setOpen(false)} onKeyDown=${press}
        onInput=${(event) => {
          offer();
          onValue(event.currentTarget.value);
        }} />
      <ul id=${list} role="listbox" aria-label=${typed ? "People of that name" : "Who it looks like"} class=${"offered" + (atEnd ? " at-end" : "")} hidden=${!people.length}>
        ${people.map((one, place) => html`<li key=${one.id} id=${`${list}-${place}`} role="option" aria-selected=${place === active}
          onPointerDown=${(event) => event.preventDefault()} onClick=${() => choose(one)}>
          <${Somebody} person=${one} before=${typed ? "" : "Looks like "} />
        </li>`)}
      </ul>
    </span>`;
}
