// One person: the faces, the name, and all that can be put right about them.
import { Refused, get, quietly } from "./api.js";
import { ChosenBar, useChosen } from "./chosen.js";
import { correct } from "./corrections.js";
import { Face, Name, count, nameOf } from "./face.js";
import { forgetPerson } from "./forget.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { showFace } from "./look.js";
import { mergePeople } from "./merge.js";
import { Naming } from "./naming.js";
import { usePaged } from "./paged.js";
import { Choice } from "./people.js";
import { pickPerson } from "./pick.js";
import { change, go, goInstead, href, useTitle } from "./router.js";
import { WindowedGrid } from "./windowed.js";

const SORTS = { added: "As they came", score: "Least alike first", taken: "By date" };

export function Person({ id, settings, anew }) {
  const { sort = "added", year = "", with: other = "" } = settings;
  const [person, setPerson] = useState(undefined); // null: there is no such person
  const [times, setTimes] = useState(0);
  const again = () => setTimes((before) => before + 1); // this view alone: the grid stays as it was left
  const version = `${anew} ${times}`;
  const faces = usePaged(`people/${encodeURIComponent(id)}/faces`, { sort, year: year || null, with: other || null, count: 120 }, "faces", version);
  const asOf = useRef(null);
  const given = useRef(null); // the latest name that the page gave or the server told: { name, before?, back? }

  useEffect(() => {
    if (!id) return setPerson(null);
    let wanted = true;
    get(`people/${encodeURIComponent(id)}`).then(
      (answer) => {
        if (!wanted) return;
        asOf.current = answer.asOf;
        given.current = { name: answer.person.name };
        setPerson(answer.person);
        if (answer.person.id !== id) goInstead("person", answer.person.id); // it is merged with another
      },
      (error) => {
        if (!(error instanceof Refused)) throw error;
        if (wanted) setPerson(null);
      },
    );
    return () => (wanted = false);
  }, [id, version]);
  useTitle(person && (person.name ? nameOf(person) : "Without a name"));
  const chosen = useChosen(faces.items, id, sort, year, other, version);

  if (person === undefined) return html`<h1 class="unseen">A person</h1>`;
  if (person === null) return html`<div class="empty"><h1>Nobody</h1><p>This person is not here any more.</p>
    <a class="button" href=${href("people")}>All people</a></div>`;

  const wish = (kind, more) => ({ kind, persons: [person.id], asOf: asOf.current, ...more });
  const named = (name) => {
    const mine = { name, before: given.current };
    given.current = mine;
    setPerson((now) => ({ ...now, name, namesakes: undefined }));
    return () => {
      mine.back = true;
      if (given.current.name !== name) return; // a later one is on its way
      given.current = mine;
      while (given.current.back) given.current = given.current.before;
      setPerson((now) => ({ ...now, name: given.current.name }));
    };
  };
  const toHide = person.hidden ? "unhide" : "hide";
  const hide = () => {
    const { hidden } = person;
    setPerson((now) => ({ ...now, hidden: !hidden }));
    correct(wish(toHide), `${hidden ? "Shown again" : "Hidden"}: ${nameOf(person)}`, () => setPerson((now) => ({ ...now, hidden })));
  };
  const cover = async (face) => {
    chosen.clear();
    if (await correct(wish("cover", { faces: [face.id] }), `Cover picture of ${nameOf(person)}`, again)) again();
  };
  const merge = async (other) => {
    if (other && (await mergePeople([person, other], asOf.current, () => again))) again();
  };
  const notSame = async () => {
    const other = await pickPerson("Who is somebody else?", person.id);
    if (other) correct(wish("not_same", { persons: [person.id, other.id] }), `${nameOf(person)} and ${nameOf(other)} are two people`);
  };
  const apart = async () => {
    if (await correct(wish("unmerge"), `Taken apart: ${nameOf(person)}`)) again();
  };
  const forget = async () => {
    if (await forgetPerson(person, asOf.current)) go("people");
  };
  // Faces leave this person: at once on the page, then in the store.
  const away = async (picked, kind, persons, text) => {
    const before = faces.items;
    chosen.clear();
    faces.change((items) => items.filter((face) => !picked.has(face.id)));
    const more = { persons, faces: [...picked.keys()], ...(kind === "move" && { from: person.id }) };
    const answer = await correct(wish(kind, more), text, () => {
      faces.change(() => before);
      again();
    });
    if (answer) again();
    return answer;
  };
  const facesOf = (picked) => count(picked.size, "face");
  const split = (picked) => away(picked, "split", [person.id], `Split off: ${facesOf(picked)} as a new person`);
  const nobody = (picked) => away(picked, "move", [], `${facesOf(picked)}: nobody's`);
  const move = async (picked) => {
    const other = await pickPerson("Whose is it?", person.id);
    if (other) away(picked, "move", [other.id], `${facesOf(picked)} moved to ${nameOf(other)}`);
  };
  const look = (place) => showFace(faces.items, place, (face) => notesOf(person, face));
  const key = (event, face, place) => {
    if (event.key !== "p") return;
    event.preventDefault();
    look(place);
  };

  return html`
    <header class="person">
      <${Face} key=${person.picture} src=${person.picture} eager alt=${`A face of ${nameOf(person)}`} />
      <div class="spread">
        <h1 class="unseen">${nameOf(person)}</h1>
        <${Naming} key=${person.id} person=${person} asOf=${asOf.current} onNamed=${named} onMerge=${merge} />
        <p class="soft">
          ${count(person.photos, "photo")}, ${count(person.faces, "face")}
          ${person.externalId && html`, <bdi>${person.externalId}</bdi>`}
          ${person.namesakes && html`, <a href=${href("people", "", { q: person.name })}>${person.namesakes + 1} people of this name</a>`}
          ${person.hidden && html`, <strong>hidden</strong>`}
        </p>
      </div>
      <div class="row actions">
        <a class="button" href=${href("review", "", { person: person.id })}>Who may be the same?</a>
        <button onClick=${async () => merge(await pickPerson("Who is the same person?", person.id))}>Merge with…</button>
        <button onClick=${notSame}>Not the same as…</button>
        ${person.merged > 0 && html`<button onClick=${apart}>Take ${count(person.merged, "merged person", "merged people")} out</button>`}
        <button onClick=${hide}>${person.hidden ? "Show again" : "Hide"}</button>
        <button class="danger" onClick=${forget}>Forget…</button>
      </div>
    </header>
    <${Context} key=${person.id} person=${person} version=${version} year=${year} other=${other} onMerge=${merge} />
    <${ChosenBar} chosen=${chosen} label="Chosen faces">
      <button class="main" onClick=${() => split(chosen.items)}>Split off</button>
      <button onClick=${() => move(chosen.items)}>Move to…</button>
      <button onClick=${() => nobody(chosen.items)}>Nobody</button>
      ${chosen.items.size === 1 && html`<button onClick=${() => cover([...chosen.items.values()][0])}>Cover picture</button>`}
    <//>
    <div class="row faces-head">
      <h2 class="spread">Faces${year && ` of ${year}`}${other && html`<${OnPhotosWith} key=${other} id=${other} />`}</h2>
      ${(year || other) && html`<button onClick=${() => change({ year: "", with: "" })}>All faces</button>`}
      <${Choice} label="Sort faces" values=${SORTS} value=${sort} onChange=${(value) => change({ sort: value })} />
    </div>
    <${WindowedGrid} items=${faces.items} done=${faces.done} onEnd=${faces.more} label="Faces" onKey=${key}
      draw=${(face, place) => html`
        <li key=${face.id} class="card" aria-setsize=${year || other ? -1 : person.faces} aria-posinset=${place + 1}>
          <button class="crop" aria-pressed=${chosen.has(face.id)} aria-keyshortcuts="p" onClick=${(event) => chosen.toggle(face, place, event.shiftKey)}>
            <${Face} key=${face.picture} src=${face.picture} alt=${`Face ${place + 1}`} />
          </button>
          <button class="plain about" tabindex="-1" onClick=${() => look(place)}>
            ${face.photo ? html`<bdi>${face.photo.name}</bdi>` : "posted"}<span class="unseen"> of face ${place + 1}</span>
          </button>
        </li>`} />`;
}

function OnPhotosWith({ id }) {
  const [who, setWho] = useState(null);
  useEffect(() => {
    quietly(get(`people/${encodeURIComponent(id)}`)).then((found) => setWho(found?.person));
  }, []);
  return html` on photos with ${who ? nameOf(who) : "somebody else"}`;
}

const nth = (place) => `number ${place + 1}`;

// When the person was seen, with whom, and who may be the same.
function Context({ person, version, year, other, onMerge }) {
  const [around, setAround] = useState({ with: [], years: [], undated: 0 });
  const [alike, setAlike] = useState([]);
  useEffect(() => {
    let wanted = true;
    quietly(get(`people/${encodeURIComponent(person.id)}/around`)).then((found) => wanted && found && setAround(found));
    quietly(get("review", { person: person.id, count: 3 })).then((found) => wanted && found && setAlike(found.pairs));
    return () => (wanted = false);
  }, [version]);
  const most = Math.max(...around.years.map(({ faces }) => faces));
  return html`<div class="around">
    ${around.years.length > 0 &&
    html`<section class="part" aria-labelledby="when">
      <h2 id="when">When</h2>
      <ol class="years" aria-label="Faces by year">
        ${around.years.map((one) => html`<li key=${one.year}>
          <button class="plain" aria-pressed=${String(one.year) === year} onClick=${() => change({ year: String(one.year) === year ? "" : one.year, sort: "taken" })}>
            <span class="column" style=${{ height: `${(one.faces / most) * 100}%` }}></span>
            ${one.year}<span class="unseen">, ${count(one.faces, "face")}</span>
          </button>
        </li>`)}
      </ol>
      ${around.undated > 0 && html`<p class="soft">${count(around.undated, "face")} without a date.</p>`}
    </section>`}
    ${around.with.length > 0 &&
    html`<section class="part" aria-labelledby="with">
      <h2 id="with">Often with</h2>
      <ul class="strip people">
        ${around.with.map((one, place) => html`<li key=${one.person.id}>
          <a href=${href("person", one.person.id)}><${Face} src=${one.person.picture} /><${Name} name=${one.person.name} unseen=${nth(place)} /></a>
          <button aria-pressed=${one.person.id === other} onClick=${() => change({ with: one.person.id === other ? "" : one.person.id })}>
            ${count(one.photos, "photo")}<span class="unseen"> with ${nameOf(one.person)}${!one.person.name && `, ${nth(place)}`}</span>
          </button>
        </li>`)}
      </ul>
    </section>`}
    ${alike.length > 0 &&
    html`<section class="part" aria-labelledby="alike">
      <h2 id="alike">May be the same</h2>
      <ul class="strip people">
        ${alike.map(({ one, other, score }) => ({ ...(one.id === person.id ? other : one), score })).map((each, place) => html`<li key=${each.id}>
          <a href=${href("person", each.id)}><${Face} src=${each.picture} /><${Name} name=${each.name} unseen=${nth(place)} /><small class="soft">score ${each.score.toFixed(2)}</small></a>
          <button onClick=${() => onMerge(each)}>Merge<span class="unseen"> with ${nameOf(each)}${!each.name && `, ${nth(place)}`}</span></button>
        </li>`)}
      </ul>
    </section>`}
  </div>`;
}

const notesOf = (person, face) => html`
    ${face.score != null && html`Score ${face.score.toFixed(2)}. `}
    ${face.reference && html`${nameOf(person)} is known by this face. `}
    ${face.stated && "You said whose it is."}`;
