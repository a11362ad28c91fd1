// What is put right, one correction after another, and the undoing of the last. A view shows the change at once and hands
// over how to show the page as it was, for when the server refuses or the user undoes it.
import { Broken, Refused, directory, get, leaving, request, serverIsBack, session, signOut } from "./api.js";
import { askWhich } from "./dialog.js";
import { html } from "./html.js";
import { observable } from "./observable.js";

export const said = observable(null); // the last sentence for the user: { text, bad, final: nothing can take it back }
export const last = observable(null); // what Undo takes back: { correction, text, blocked?, own? }
export const pending = observable(0); // corrections that the server has not answered
export const changed = observable(0); // counts changes that no view has shown: all load anew

const reverts = new Map(); // by the correction's id: how the view that showed it takes it back
const lasting = new Map(); // likewise, of what a view shows again after it was left
export const touched = new Set(); // ids of people whom corrections changed since a list that was left looked at them
let onPage = {}; // stands for what is on the page: another one once a view was left or has loaded anew
let newest = 0; // the largest id of a correction that is known of; they grow
let queue = Promise.resolve();

const after = (work) => (queue = queue.then(work, work));
export function inTurn(work) {
  pending.set(pending.get() + 1);
  const done = after(work);
  done.finally(() => pending.set(pending.get() - 1));
  return done;
}
addEventListener("beforeunload", (event) => pending.get() && !leaving && event.preventDefault()); // they would be lost
export const signOutInTurn = () => after(signOut);

export const say = (text, bad = false, final = false) => said.set({ text, bad, final });

// All tabs of this browser show what one of them changed.
export const heard = observable(null); // the ids of people whom another tab changed last
const tabs = new BroadcastChannel("facepipe");
const tellTabs = (where, persons) => tabs.postMessage({ user: session.get()?.user, where, persons: [...persons] });
tabs.onmessage = ({ data: { user, where, persons } }) => {
  if (user !== session.get()?.user || where !== directory.get()) return;
  persons.forEach((id) => touched.add(id));
  heard.set(persons);
  after(() => lookUpLast(where));
};

export function showAnew() {
  forgetShown();
  changed.set(changed.get() + 1);
}

// After a change that no view has shown; `persons`: ids of those whom it concerns.
export function changedHere(where, persons = []) {
  tellTabs(where, persons);
  showAnew();
}

// After a correction that another request than `correct` made, and no view has shown but what `revert` takes back.
export function madeHere(correction, text, where, revert) {
  say(text);
  if (revert) lasting.set(correction, revert);
  newest = Math.max(newest, correction);
  if (where === directory.get()) last.set({ correction, text });
  changedHere(where);
}

// What views showed before cannot be taken back in those that are there now.
export function forgetShown() {
  onPage = {};
  reverts.clear();
}

const touch = ({ persons = [], gone = [] }, where) => {
  [...persons, ...gone].forEach((id) => touched.add(id));
  if (where) tellTabs(where, [...persons, ...gone]);
};

// `wish`: the body of the API's corrections. `text`: what it did. `handled(error)`: true where the view sees to it.
// The answer; null where it was refused: then the page is as before, and the bar says why.
export function correct(wish, text, revert = showAnew, handled = () => false) {
  const [where, before] = [directory.get(), onPage];
  say(text, false, wish.kind === "forget");
  return inTurn(async () => {
    try {
      const answer = await make(wish, where);
      touch(wish);
      touch(answer, where);
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
      else say(wish.name ? `${error.message} Not done: ${text}` : error.message, true);
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

// Whether the page offers to undo the last change: it is of this session, and what the bar says is not for ever.
export const isOffered = (what, now) => Boolean(what) && what.own !== false && !now?.final;

// Takes back what is the last one now, after a question if it is not offered; nothing while a correction is on its way, which
// would be the last.
export async function undo() {
  const [what, where] = [last.get(), directory.get()];
  if (!what || what.blocked || pending.get()) return undefined;
  if (!isOffered(what, said.get()) && !(await isMeant(what))) return undefined;
  return undoOne(what, where);
}

// Undoes one of the list of changes, whoever made it.
export function undoOne(what, where = directory.get()) {
  return inTurn(async () => {
    try {
      await takeBack(what.correction, where);
      say(`Undone: ${what.text}`);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      say(error.message, true);
    }
    await lookUpLast(where);
  });
}

const isMeant = ({ text, at, own }) => {
  const [asked, why] = own === false ? ["Undo what was done elsewhere?", "This was not done here"] : ["Undo an earlier change?", "This was done before"];
  return askWhich(asked, html`<p>${why}: <bdi>${text}</bdi>${at && `, ${new Date(at).toLocaleString("en-GB")}`}.</p>`, { undo: "Undo it" });
};

async function takeBack(correction, where) {
  touch(await once("corrections/undo", { correction }, where, () => false), where);
  const revert = reverts.get(correction) ?? showAnew; // another view may be on the page by now
  reverts.delete(correction);
  lasting.get(correction)?.();
  lasting.delete(correction);
  revert();
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
