// One person: the faces, the name, and all that can be put right about them.
import { Refused, get } from "./api.js";
import { correct } from "./corrections.js";
import { Face, count, nameOf } from "./face.js";
import { forgetPerson } from "./forget.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { showFace } from "./look.js";
import { mergePeople } from "./merge.js";
import { Naming } from "./naming.js";
import { usePaged } from "./paged.js";
import { Choice } from "./people.js";
import { pickPerson } from "./pick.js";
import { change, go, goInstead, href } from "./router.js";
import { WindowedGrid } from "./windowed.js";

const SORTS = { added: "As they came", score: "Least alike first" };

export function Person({ id, settings, anew }) {
  const { sort = "added" } = settings;
  const [person, setPerson] = useState(undefined); // null: there is no such person
  const [chosen, setChosen] = useState(new Set());
  const [times, setTimes] = useState(0);
  const again = () => setTimes((before) => before + 1); // this view alone: the grid stays as it was left
  const version = `${anew} ${times}`;
  const faces = usePaged(`people/${encodeURIComponent(id)}/faces`, { sort, count: 120 }, "faces", version);
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
  useEffect(() => setChosen(new Set()), [id, sort, version]);

  if (person === undefined) return html`<h1 class="unseen">A person</h1>`;
  if (person === null) return html`<div class="empty"><h1>Nobody</h1><p>This person is not here any more.</p>
    <a class="button" href=${href("people")}>All people</a></div>`;

  const wish = (kind, more) => ({ kind, persons: [person.id], asOf: asOf.current, ...more });
  const named = (name) => {
    const mine = { name, before: given.current };
    given.current = mine;
    setPerson((now) => ({ ...now, name }));
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
    setChosen(new Set());
    faces.change((items) => items.filter((face) => !picked.has(face.id)));
    const more = { persons, faces: [...picked], ...(kind === "move" && { from: person.id }) };
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
  const toggle = (face) => {
    const next = new Set(chosen);
    if (!next.delete(face)) next.add(face);
    setChosen(next);
  };

  return html`
    <header class="person">
      <${Face} key=${person.picture} src=${person.picture} eager alt=${`The face that ${nameOf(person)} is known by`} />
      <div class="spread">
        <h1 class="unseen">${nameOf(person)}</h1>
        <${Naming} key=${person.id} person=${person} asOf=${asOf.current} onNamed=${named} onMerge=${merge} />
        <p class="soft">
          ${count(person.photos, "photo")}, ${count(person.faces, "face")}
          ${person.externalId && html`, <bdi>${person.externalId}</bdi>`}
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
    ${chosen.size > 0 &&
    html`<div class="chosen-bar row" role="region" aria-label="Chosen faces">
      <strong class="spread" role="status">${chosen.size} chosen</strong>
      <button class="main" onClick=${() => split(chosen)}>Split off</button>
      <button onClick=${() => move(chosen)}>Move to…</button>
      <button onClick=${() => nobody(chosen)}>Nobody</button>
      <button class="plain" onClick=${() => setChosen(new Set())}>Clear</button>
    </div>`}
    <div class="row faces-head">
      <h2 class="spread">Faces</h2>
      <${Choice} label="Sort faces" values=${SORTS} value=${sort} onChange=${(value) => change({ sort: value })} />
    </div>
    <${WindowedGrid} items=${faces.items} done=${faces.done} onEnd=${faces.more} label="Faces"
      draw=${(face, place) => html`
        <li key=${face.id} class="card" aria-setsize=${person.faces} aria-posinset=${place + 1}>
          <button class="crop" aria-pressed=${chosen.has(face.id)} onClick=${() => toggle(face.id)}>
            <${Face} key=${face.picture} src=${face.picture} alt=${`Face ${place + 1}`} />
          </button>
          <button class="plain about" onClick=${() => showFaceOf(person, face)}>
            ${face.photo ? html`<bdi>${face.photo.name}</bdi>` : "posted"}<span class="unseen"> of face ${place + 1}</span>
          </button>
        </li>`} />`;
}

const showFaceOf = (person, face) =>
  showFace(face, `A face of ${nameOf(person)}`, html`
    ${face.score != null && html`Score ${face.score.toFixed(2)}. `}
    ${face.reference && html`${nameOf(person)} is known by this face. `}
    ${face.stated && "You said whose it is."}`);
