// What is put right, one correction after another, and the undoing of the last. A view shows the change at once and hands
// over how to show the page as it was, for when the server refuses or the user undoes it.
import { Broken, Refused, get, request, serverIsBack } from "./api.js";
import { observable } from "./observable.js";

export const said = observable(null); // the last sentence for the user: { text, bad }
export const last = observable(null); // what Undo takes back: { correction, text, blocked? }
export const pending = observable(0); // corrections that the server has not answered
export const changed = observable(0); // counts changes that no view has shown: all load anew

const reverts = new Map(); // by the correction's id: { hash, revert } of the view that showed it, `also` what goes with it
const touched = new Set(); // ids of people whom corrections changed since a list took them
let queue = Promise.resolve();

function inTurn(work) {
  pending.set(pending.get() + 1);
  queue = queue.then(work, work);
  queue.finally(() => pending.set(pending.get() - 1));
  return queue;
}
export const say = (text, bad = false) => said.set({ text, bad });
export const showAnew = () => changed.set(changed.get() + 1);

// The people whom a list that was left has to look at again.
export function takeTouched() {
  const ids = [...touched];
  touched.clear();
  return ids;
}
const touch = ({ persons = [], gone = [] }) => [...persons, ...gone].forEach((id) => touched.add(id));

// `wish`: the body of the API's corrections. `text`: what it did. `handled(error)`: true where the view sees to it.
// `follow(answer)`: the wish of a second correction, or null; the two are undone together.
// The answer; null where it was refused: then the page is as before, and the bar says why.
export function correct(wish, text, revert = showAnew, handled = () => false, follow = () => null) {
  const { hash } = location;
  say(text);
  return inTurn(async () => {
    try {
      const answer = await doneOnce(wish);
      touch(answer);
      wish.persons.forEach((id) => touched.add(id));
      const second = await follow(answer);
      const also = second && answer.correction;
      const { correction } = second ? await doneOnce(second) : answer;
      if (correction != null) {
        reverts.set(correction, { hash, revert, also });
        last.set({ correction, text });
      } else if (wish.kind === "forget") await findLast();
      return answer;
    } catch (error) {
      refused(error, revert, handled);
      return null;
    }
  });
}

function refused(error, revert, handled) {
  if (!(error instanceof Refused)) throw error;
  revert();
  if (handled(error)) return said.set(null);
  say(error.message, true);
  if (error.reason === "changed-since" || error.status === 404) showAnew();
  return undefined;
}

// A correction whose connection broke may be made: the server's last one tells.
async function doneOnce(wish) {
  for (;;) {
    try {
      return await request("POST", "corrections", { json: wish, once: true });
    } catch (error) {
      if (!(error instanceof Broken)) throw error;
      await serverIsBack();
      const found = await get("corrections/last");
      const ours = found.kind === wish.kind && wish.persons?.some((id) => found.persons.includes(id));
      if (ours && found.correction !== last.get()?.correction) return found;
    }
  }
}

// What `enrol` did is no correction; forgetting the new person takes it back.
export function enrolled(person, text) {
  say(text);
  last.set({ forget: person, text });
}

export function undo() {
  return inTurn(async () => {
    const what = last.get();
    if (!what || what.blocked) return;
    try {
      if (what.forget) {
        await request("POST", "corrections", { json: { kind: "forget", persons: [what.forget], confirm: true } });
        showAnew();
      } else {
        const shown = reverts.get(what.correction);
        for (const correction of [what.correction, shown?.also]) {
          if (correction) touch(await request("POST", "corrections/undo", { json: { correction } }));
        }
        if (shown?.hash === location.hash) shown.revert();
        else showAnew(); // another view is on the page by now
      }
      say(`Undone: ${what.text}`);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      say(error.message, true);
    }
    await findLast();
  });
}

export async function findLast() {
  const found = await get("corrections/last");
  last.set(found.correction == null ? null : found);
}
