// Pairs of people who may be one, side by side: one key each for same, not same and skip. Each answer shows at once and
// is sent meanwhile; undoing one brings its pair back. #/review/regroup shows what a regroup would change, and
// #/review/newer what one by the store's newer index would, before the store changes its model.
import { correct } from "./corrections.js";
import { Face, Name, count, nameOf } from "./face.js";
import { useKeys } from "./frame.js";
import { html, useEffect, useState } from "./html.js";
import { usePaged } from "./paged.js";
import { href } from "./router.js";
import { TwiceLink } from "./twice.js";

const AHEAD = 8; // pairs that are there before they are needed
const PRELOADED = 2; // pairs whose pictures are

const METHODS = { "average-link": "by average link", sequential: "of one face after another" };

const keyOf = (pair) => `${pair.one.id} ${pair.other.id}`;

// The pairs that still need an answer: those not decided, and not settled by the merges that were decided before, whose
// people have the name that stayed; of two names a pair is not asked. A pair that the server lists after its answer was made is there again.
function unanswered({ items: pairs, asOf }, all) {
  const decided = new Map([...all].filter(([, { madeAt }]) => !(madeAt < asOf)));
  const [merged, names] = [new Map(), new Map()];
  const root = (id) => (merged.has(id) ? root(merged.get(id)) : id);
  for (const { answer, one, other, name } of decided.values()) {
    if (answer !== "same") continue;
    if (root(other) !== root(one)) merged.set(root(other), root(one));
    names.set(root(one), name);
  }
  const named = (person) => ({ ...person, name: names.get(root(person.id)) ?? person.name });
  return pairs
    .filter((pair) => !decided.has(keyOf(pair)) && root(pair.one.id) !== root(pair.other.id))
    .map((pair) => ({ ...pair, one: named(pair.one), other: named(pair.other) }))
    .filter(({ one, other }) => !one.name || !other.name || one.name === other.name);
}

export function Review({ id, settings: { person }, anew }) {
  const ofRegroup = id === "newer" || id === "regroup";
  const list = usePaged(ofRegroup ? `review/${id}` : "review", ofRegroup ? {} : { count: 40, person }, "pairs", anew);
  const { newer, moves = [] } = list.answer ?? {};
  const [decided, setDecided] = useState(new Map()); // by pair: { answer: same, not or skip, one, other, name?, madeAt? }
  const left = unanswered(list, decided);
  const pair = left[0];
  const remaining = left.length + (ofRegroup ? list.total - list.items.length : list.answer?.left) || 0;
  const done = [...decided.values()].filter(({ answer }) => answer !== "skip").length;
  const skipped = decided.size - done;

  useEffect(() => {
    if (left.length < AHEAD && !list.done && !list.loading) list.more();
  }, [left.length, list.done, list.loading, list.next]);
  useEffect(() => {
    for (const { one, other, oneFaces, otherFaces } of left.slice(1, 1 + PRELOADED)) {
      for (const { picture } of [one, other, ...oneFaces, ...otherFaces]) if (picture) new Image().src = picture;
    }
  }, [pair && keyOf(pair)]);

  const decide = (answer) => {
    if (!pair) return;
    const key = keyOf(pair);
    const { one, other } = pair;
    const [kind, said, name] = answer === "same" ? ["merge", "Same", one.name || other.name] : ["not_same", "Not the same"];
    const note = (madeAt) => setDecided((old) => new Map(old).set(key, { answer, one: one.id, other: other.id, name, madeAt }));
    note();
    const back = () =>
      setDecided((old) => {
        const next = new Map(old);
        next.delete(key);
        return next;
      });
    if (answer === "skip") return;
    const wish = { kind, persons: [one.id, other.id], name, asOf: list.asOf };
    const text = `${said}: ${nameOf(one)} and ${nameOf(other)}`;
    correct(wish, text, back).then((made) => made && note(made.asOf));
  };
  const [same, not, skip] = ["same", "not", "skip"].map((answer) => () => decide(answer));
  useKeys({ s: same, ArrowLeft: same, n: not, ArrowRight: not, k: skip, ArrowDown: skip });

  return html`
    <header class="asking">
      <h1>Review</h1>
      <div class="spread evidence" role="status">${pair && html`<${Evidence} pair=${pair} />`}</div>
      <p class="soft">${[done && `${done.toLocaleString("en")} answered`, remaining > 0 && `${remaining.toLocaleString("en")} left`].filter(Boolean).join(", ")}</p>
      ${ofRegroup || person
        ? html`<a class="button" href=${href("review")}>Back to the pairs of now</a>`
        : html`<a class="button" href=${href("review", "regroup")}>What a regroup would change</a>
            ${newer && html`<a class="button" href=${href("review", "newer")}>What <bdi>${newer}</bdi> would decide otherwise</a>`}`}
      <${TwiceLink} anew=${anew} />
    </header>
    ${ofRegroup && html`<${OfRegroup} list=${list} byNewer=${id === "newer"} />`}
    ${pair
      ? html`<${Pair} pair=${pair} decide=${decide} />`
      : html`<div class="empty" aria-busy=${!list.done}>
          ${!list.done
            ? html`<p>${ofRegroup ? "Deciding…" : "Looking for people who may be one…"}</p>`
            : html`<p>${done ? "That was all. " : ""}There is no pair to answer.</p>
                ${skipped > 0 &&
                html`<button onClick=${() => setDecided(new Map([...decided].filter(([, { answer }]) => answer !== "skip")))}>
                  Look at the ${count(skipped, "skipped pair")} again
                </button>`}`}
        </div>`}
    ${moves.length > 0 && html`<${Moves} key=${list.asOf} moves=${moves} asOf=${list.asOf} />`}`;
}

function OfRegroup({ list, byNewer }) {
  if (list.loading) return html`<p class="soft">Deciding all faces${byNewer && " by the newer index"}. This can take minutes.</p>`;
  if (!list.answer) return null;
  const { newer, method, faces, parted } = list.answer;
  return html`<p class="soft">${byNewer ? html`The newer index, by <bdi>${newer}</bdi>,` : `A regroup ${METHODS[method]}`}
    ${" "}would make one person of ${count(list.total, "pair")}, move ${count(faces, "face")}${parted > 0 &&
    `, and part ${count(parted, "person", "people")} whom an earlier regroup joined`}. Nothing is changed by it unless you say so.${
    list.total > list.items.length &&
    ` Here are ${list.items.length.toLocaleString("en")} of the pairs; open this again for the next ones.`}</p>`;
}

// Faces that a regroup would give to somebody else: to make these moves now, or to keep the faces where they are, which binds
// later regroups. Rows of one new person are of one person here, too: the first splits it off, the others move there.
function Moves({ moves, asOf }) {
  const [made, setMade] = useState(new Map()); // by the first face: true, or the id of the new person
  const newOnes = new Map(moves.filter(({ new: key, ids }) => key && made.get(ids[0])?.length).map(({ new: key, ids }) => [key, made.get(ids[0])]));
  const note = (face, value) => setMade((old) => (value ? new Map(old).set(face, value) : new Map([...old].filter(([one]) => one !== face))));
  const move = (group) => {
    const { ids: [face], ids: faces, from, fromRecord, toRecord, new: key } = group;
    const target = toRecord ?? newOnes.get(key);
    const wish = target
      ? { kind: "move", persons: [target], ...(from && { from: from.id }) }
      : { kind: "split", persons: [fromRecord] };
    note(face, true);
    correct({ ...wish, faces, asOf }, `${count(faces.length, "face")} moved to ${whose(group)}`, () => note(face, null)).then(
      (answer) => answer && !target && note(face, answer.persons[0]),
    );
  };
  const keep = ({ ids: [face], ids: faces, from, fromRecord }) => {
    note(face, true);
    const wish = { kind: "move", persons: [fromRecord], faces, from: from.id, asOf };
    correct(wish, `${count(faces.length, "face")} kept with ${nameOf(from)}`, () => note(face, null));
  };
  return html`
    <h2>Faces that would move</h2>
    <ul class="moves">
      ${moves.map((group) => !made.has(group.ids[0]) && html`<li class="row" key=${group.ids[0]}>
        <div class="strip">${group.faces.map((face) => html`<${Face} key=${face.id} src=${face.picture} alt="" />`)}</div>
        <p class="spread">${count(group.ids.length, "face")} of ${group.from
          ? html`<a href=${href("person", group.from.id)}><${Name} name=${group.from.name} /></a>`
          : "nobody"} would be of ${group.to
          ? html`<a href=${href("person", group.to.id)}><${Name} name=${group.to.name} /></a>`
          : whose(group)}</p>
        ${(group.to || newOnes.has(group.new) || (group.new && group.from)) &&
        html`<button onClick=${() => move(group)}>Move ${group.ids.length === 1 ? "it" : "them"}</button>`}
        ${group.from && html`<button onClick=${() => keep(group)}>Keep ${group.ids.length === 1 ? "it" : "them"}</button>`}
      </li>`)}
    </ul>`;
}

const whose = (group) => (group.to ? nameOf(group.to) : group.new ? "somebody new" : "nobody");

const Evidence = ({ pair: { score, reasons } }) => html`
  <span class="soft">Is it one person? Score ${score.toFixed(2)}: ${reasons}.</span>`;

// The buttons stay for the next pair, with the focus.
function Pair({ pair, decide }) {
  const { one, other, oneFaces, otherFaces } = pair;
  return html`
    <div class="asked">
      <div class="pair" key=${keyOf(pair)}>
        <${Side} which="One" person=${one} faces=${oneFaces} />
        <${Side} which="Other" person=${other} faces=${otherFaces} />
      </div>
      <div class="answers row">
        <button class="main" aria-keyshortcuts="s ArrowLeft" onClick=${() => decide("same")}>Same <kbd>S</kbd></button>
        <button aria-keyshortcuts="k ArrowDown" onClick=${() => decide("skip")}>Skip <kbd>K</kbd></button>
        <button aria-keyshortcuts="n ArrowRight" onClick=${() => decide("not")}>Not the same <kbd>N</kbd></button>
      </div>
    </div>`;
}

// The largest picture is the one that the person is known by; below it others to compare with.
function Side({ which, person, faces }) {
  const [looked, setLooked] = useState(null);
  const others = faces.filter((face) => face.picture && face.picture !== person.picture);
  const all = [person.picture, ...others.map((face) => face.picture)].filter(Boolean);
  return html`
    <section aria-label=${`${which}: ${nameOf(person)}`}>
      <${Face} key=${looked ?? all[0]} src=${looked ?? all[0]} eager alt=${`A face of ${nameOf(person)}`} />
      ${all.length > 1 &&
      html`<div class="strip">
        ${all.map((picture, place) => html`<button aria-label=${`${which}: face ${place + 1} of ${nameOf(person)}`} key=${picture}
          aria-pressed=${picture === (looked ?? all[0])} onClick=${() => setLooked(picture)}><${Face} src=${picture} eager /></button>`)}
      </div>`}
      <p><a href=${href("person", person.id)}><${Name} name=${person.name} unseen=${which.toLowerCase()} /></a> <span class="soft">${count(person.photos, "photo")}</span></p>
    </section>`;
}
