// What is put right, one correction after another, and the undoing of the last. A view shows the change at once and hands
// over how to show the page as it was, for when the server refuses or the user undoes it.
import { Broken, Refused, directory, get, leaving, request, serverIsBack, signOut } from "./api.js";
import { askWhich } from "./dialog.js";
import { count } from "./face.js";
import { html } from "./html.js";
import { observable } from "./observable.js";

export const said = observable(null); // the last sentence for the user: { text, bad }
export const last = observable(null); // what Undo takes back: { correction, text, blocked?, own? }, or what was enrolled
export const pending = observable(0); // corrections that the server has not answered
export const changed = observable(0); // counts changes that no view has shown: all load anew

const reverts = new Map(); // by the correction's id: how the view that showed it takes it back
export const touched = new Set(); // ids of people whom corrections changed since a list that was left looked at them
let onPage = {}; // stands for what is on the page: another one once a view was left or has loaded anew
let newest = 0; // the largest id of a correction that is known of; they grow
let queue = Promise.resolve();

const after = (work) => (queue = queue.then(work, work));
function inTurn(work) {
  pending.set(pending.get() + 1);
  const done = after(work);
  done.finally(() => pending.set(pending.get() - 1));
  return done;
}
addEventListener("beforeunload", (event) => pending.get() && !leaving && event.preventDefault()); // they would be lost
export const signOutInTurn = () => after(signOut);

export const say = (text, bad = false) => said.set({ text, bad });
export function showAnew() {
  forgetShown();
  changed.set(changed.get() + 1);
}

// What views showed before cannot be taken back in those that are there now.
export function forgetShown() {
  onPage = {};
  reverts.clear();
}

const touch = ({ persons = [], gone = [] }) => [...persons, ...gone].forEach((id) => touched.add(id));

// `wish`: the body of the API's corrections. `text`: what it did. `handled(error)`: true where the view sees to it.
// The answer; null where it was refused: then the page is as before, and the bar says why.
export function correct(wish, text, revert = showAnew, handled = () => false) {
  const [where, before] = [directory.get(), onPage];
  say(text);
  return inTurn(async () => {
    try {
      const answer = await make(wish, where);
      touch(answer);
      touch(wish);
      const { correction } = answer;
      if (before !== onPage) showAnew(); // what is on the page may be from before the correction
      if (where !== directory.get()) return answer; // Undo is about the directory that is chosen
      if (correction != null) {
        newest = Math.max(newest, correction);
        if (before === onPage) reverts.set(correction, revert);
        last.set({ correction, text });
      } else if (wish.kind === "forget") await lookUpLast(where);
      return answer;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      const left = before !== onPage;
      revert();
      const seen = handled(error);
      if (seen) said.set(null);
      else say(error.message, true);
      if (left || (!seen && (error.reason === "changed-since" || error.status === 404))) showAnew();
      return null;
    }
  });
}

// The answer of a request whose connection may break: the server's last correction tells whether it was done.
async function once(path, json, where, isDone) {
  for (let broke = false; ; broke = true) {
    try {
      return await request("POST", path, { json, where, once: true });
    } catch (error) {
      if (broke && json.kind === "forget" && error.status === 404) return {};
      if (broke && error.reason === "correction-impossible" && (await isUndone(json.correction, where))) return {};
      if (!(error instanceof Broken)) throw error;
      await serverIsBack();
      const found = await get("corrections/last", {}, where);
      if (isDone(found)) return found;
    }
  }
}

async function isUndone(number, where) {
  if (number == null) return false;
  const { corrections: [found] } = await get("corrections", { after: number + 1, count: 1 }, where);
  return found?.correction === number && found.undone;
}

const share = (some = [], others = []) => some.some((one) => others.includes(one));
const make = (wish, where) =>
  once(wish.photo == null ? "corrections" : `photos/${wish.photo}/faces`, wish, where, ({ correction, kind, persons, faces, own }) => {
    if (!own || correction <= newest || kind !== wish.kind) return false;
    if (!persons || wish.kind === "add_face" || wish.photos) return true; // of a blocked one no more is told
    return share(persons, wish.persons) || share(faces, wish.faces);
  });

// What `enrol` did in a directory is no correction; forgetting the new person takes it back.
export function enrolled(person, text, where) {
  say(text);
  showAnew(); // no list has the new person
  return inTurn(async () => {
    const found = await get(`people/${person}`, {}, where).catch((error) => {
      if (!(error instanceof Refused)) throw error;
      return {}; // gone already, which undoing says
    });
    if (where === directory.get()) last.set({ forget: person, asOf: found.asOf, text });
  });
}

// Takes back what is the last one now; nothing while a correction is on its way, which would be the last.
export async function undo() {
  const [what, where] = [last.get(), directory.get()];
  if (!what || what.blocked || pending.get()) return undefined;
  if (what.own === false && !(await isMeant(what))) return undefined;
  return undoOne(what, where);
}

// Undoes one of the list of changes, whoever made it, or what was enrolled.
export function undoOne(what, where = directory.get()) {
  return inTurn(async () => {
    try {
      if (what.forget) await takeOut(what, where);
      else await takeBack(what.correction, where);
      say(`Undone: ${what.text}`);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      say(error.message, true);
    }
    await lookUpLast(where);
  });
}

const isMeant = ({ text, at }) =>
  askWhich("Undo what was done elsewhere?", html`<p>This was not done here: <bdi>${text}</bdi>${at && `, ${new Date(at).toLocaleString("en-GB")}`}.</p>`, {
    undo: "Undo it",
  });

async function takeBack(correction, where) {
  touch(await once("corrections/undo", { correction }, where, () => false));
  const revert = reverts.get(correction) ?? showAnew; // another view may be on the page by now
  reverts.delete(correction);
  revert();
}

// Only the one face that came: the new person may have been merged with others since, who would be forgotten as well.
async function takeOut({ forget, asOf }, where) {
  const wish = { kind: "forget", persons: [forget], asOf };
  const { faces } = await request("POST", "corrections", { json: wish, where }).catch((error) => {
    if (error.reason !== "confirmation-needed") throw error;
    return error.answer;
  });
  if (faces !== 1) {
    const message = `Not undone: this person has ${count(faces, "face")} by now, all of which would be forgotten. That can be done on the person’s page.`;
    throw new Refused(409, { message });
  }
  await once("corrections", { ...wish, confirm: true }, where, () => false);
  showAnew();
}

export function findLast() {
  const where = directory.get();
  last.set(null);
  return after(() => lookUpLast(where));
}

async function lookUpLast(where) {
  const found = await get("corrections/last", {}, where);
  if (where !== directory.get()) return;
  newest = Math.max(newest, found.correction ?? 0);
  last.set(found.correction == null ? null : found);
}
