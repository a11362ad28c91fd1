// People who are twice on a photo: to say that a face is not theirs, or that it is right on this photo.
import { correct } from "./corrections.js";
import { Name, count, nameOf, spaced } from "./face.js";
import { html, useEffect } from "./html.js";
import { usePaged } from "./paged.js";
import { Photo } from "./photo.js";
import { href } from "./router.js";

const AHEAD = 5; // entries that are there before they are needed

// To the view, with the number; nothing if there is none.
export function TwiceLink({ anew }) {
  const { total } = usePaged("twice", { count: 1 }, "entries", anew);
  return total > 0 && html`<a class="button" href=${href("review", "twice")}>${total.toLocaleString("en")} twice on a photo</a>`;
}

const keyOf = ({ person, faces }) => `${faces[0].photo.id} ${person.id}`;
const inOrder = (one, other) =>
  Boolean(one.said) - Boolean(other.said) || one.faces[0].photo.id - other.faces[0].photo.id || (one.person.id < other.person.id ? -1 : 1);

export function Twice({ anew }) {
  const list = usePaged("twice", { count: 20 }, "entries", anew);
  useEffect(() => {
    if (list.items.length < AHEAD && !list.done && !list.loading) list.more();
  }, [list.items.length, list.done, list.loading, list.next]);

  // `change` makes other entries, or none, of those that `concerns`: at once on the page, then in the store.
  const answer = (wish, text, concerns, change = () => []) => {
    const before = list.items.filter(concerns);
    const keys = new Set(before.map(keyOf));
    list.change((items) => items.flatMap((entry) => (concerns(entry) ? change(entry) : [entry])));
    correct({ ...wish, asOf: list.asOf }, text, () =>
      list.change((items) => [...items.filter((entry) => !keys.has(keyOf(entry))), ...before].sort(inOrder)),
    );
  };
  const isNot = (entry, face) =>
    answer(
      { kind: "split", persons: [entry.person.id], faces: [face.id] },
      `1 face is not ${nameOf(entry.person)}`,
      (other) => other === entry,
      ({ faces, ...rest }) => (faces.length > 2 ? [{ ...rest, faces: faces.filter(({ id }) => id !== face.id) }] : []),
    );
  const allow = ({ faces: [{ photo }] }) =>
    answer({ kind: "allow_twice", photos: [photo.id] }, `Twice on ${photo.name} is right`, ({ faces }) => faces[0].photo.id === photo.id);

  return html`
    <header>
      <h1>Twice on a photo ${list.total != null && html`<span class="soft">${list.total.toLocaleString("en")}</span>`}</h1>
      <a class="button" href=${href("review")}>Back to the pairs</a>
    </header>
    <p class="soft">Several faces of one photo are one person’s. Most are wrong matches; collages and mirrors are right.</p>
    ${list.done && !list.items.length && html`<p class="empty">Nobody is twice on a photo.</p>`}
    <ul class="twice" aria-label="Twice on a photo" aria-busy=${Boolean(list.loading)}>
      ${list.items.map((entry) => html`<${Entry} key=${keyOf(entry)} entry=${entry} isNot=${isNot} allow=${allow} />`)}
    </ul>
    ${!list.done && !list.loading && html`<button onClick=${list.more}>More</button>`}`;
}

function Entry({ entry, isNot, allow }) {
  const { person, faces, said } = entry;
  const { photo } = faces[0];
  const boxes = faces.map(({ box }, place) => ({ box, text: String(place + 1), kind: "known" })).filter(({ box }) => box);
  return html`
    <li>
      <${Photo} src=${photo.picture} width=${photo.width ?? 1} height=${photo.height ?? 1} alt=${`The photo ${photo.name}`} boxes=${boxes} />
      <div>
        <h2><a href=${href("person", person.id)}><${Name} name=${person.name} /></a></h2>
        <p><bdi>${photo.path ?? photo.name}</bdi></p>
        <p class="soft">${count(faces.length, "face")}${said && `: ${said}`}</p>
        <div class="row">
          ${faces.map((face, place) => html`<button key=${face.id} onClick=${() => isNot(entry, face)}>
            <span>${place + 1} is not <bdi>${person.name ? spaced(person.name) : "this person"}</bdi></span>
          </button>`)}
          <button class="main" onClick=${() => allow(entry)}>Allow on this photo</button>
        </div>
      </div>
    </li>`;
}
