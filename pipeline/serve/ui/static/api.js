// Requests to the server. A request waits through what passes: a session that ended (until somebody signed in again, over
// the page), a server that is gone or overloaded (until it is back). So nothing that was asked for or typed is lost.
import { observable } from "./observable.js";

export const session = observable(undefined); // what the server says of it; null: nobody is signed in
export const ended = observable(false); // the session ended while the page was in use
export const gone = observable(false); // the server does not answer
export const directory = observable("main");
export let leaving = false; // the page is being loaded anew, whatever it waits for

// What the server says against a request. `reason` is stable, the message is for people.
export class Refused extends Error {
  constructor(status, answer) {
    super(answer.message || `The server answered with status ${status}.`);
    Object.assign(this, { status, reason: answer.errorReason ?? "", answer });
  }
}

// The connection broke: the request may have been done or not.
export class Broken extends Error {}

const WAITS_MS = [500, 1000, 2000, 4000];
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function send(method, path, { query, json, body, headers, where } = {}) {
  const address = new URL(`/ui/api/${path}`, location);
  if (where) address.searchParams.set("directory", where);
  for (const [name, value] of Object.entries(query ?? {})) if (value != null) address.searchParams.set(name, value);
  const sent = { ...headers };
  if (method !== "GET") sent["X-Facepipe-Page"] = "1"; // another site's page cannot send it
  if (json) sent["Content-Type"] = "application/json";
  const signingIn = path === "session" && method === "POST";
  // Somebody else may have signed in in another tab, whose cookie all tabs share: the server then refuses.
  if (session.get() && !signingIn) sent["X-Facepipe-User"] = encodeURIComponent(session.get().user);
  let response, text;
  try {
    response = await fetch(address, { method, headers: sent, body: json ? JSON.stringify(json) : body });
    text = await response.text();
  } catch {
    throw new Broken();
  }
  let answer = {};
  try {
    answer = text ? JSON.parse(text) : {};
  } catch {
    if (response.ok) throw new Broken(); // cut off, or not from our server
  }
  if (response.ok) return answer;
  if ([502, 504].includes(response.status)) throw new Broken(); // a proxy whose server is gone
  throw new Refused(response.status, answer);
}

let back = null; // settled once the server answers; all requests wait for the same
export function serverIsBack() {
  back ??= (async () => {
    gone.set(true);
    for (let tries = 0; ; tries++) {
      await pause(WAITS_MS[Math.min(tries, WAITS_MS.length - 1)]);
      try {
        await send("GET", "session");
        break;
      } catch (error) {
        if (error instanceof Refused && error.status < 500) break;
      }
    }
    back = null;
    gone.set(false);
  })();
  return back;
}

let signedIn = null; // settled once somebody signed in again
let goOn = () => {};
function someoneSignedIn() {
  ended.set(true);
  signedIn ??= new Promise((done) => (goOn = done));
  return signedIn;
}

function loadAnew() {
  leaving = true;
  location.reload();
}

export async function signIn(user, password) {
  const before = session.get();
  const now = await send("POST", "session", { json: { user, password } });
  if (before && before.user !== now.user) return loadAnew(); // what stands here is another account's
  session.set(now);
  ended.set(false);
  signedIn = null;
  goOn();
  return undefined;
}

export async function signOut() {
  await request("DELETE", "session");
  loadAnew();
}

// At the start: who is signed in, if anybody.
export async function findSession() {
  for (;;) {
    try {
      return session.set(await send("GET", "session"));
    } catch (error) {
      if (error instanceof Refused && error.status === 401) return session.set(null);
      await serverIsBack();
    }
  }
}

// Raises Refused; with `once` Broken, too: then it is the caller's to find out whether it was done.
// `where`: the directory, by default the one that is chosen now, however long the request has to wait.
export async function request(method, path, { once = false, where = directory.get(), ...options } = {}) {
  for (;;) {
    try {
      return await send(method, path, { where, ...options });
    } catch (error) {
      if (error instanceof Refused && error.reason === "other-account") {
        loadAnew(); // what stands here is another account's
        await new Promise(() => {});
      } else if (error instanceof Refused && error.status === 401) await someoneSignedIn();
      else if (error instanceof Refused && error.status === 503) await pause(1000);
      else if (error instanceof Broken && !once) await serverIsBack();
      else throw error;
    }
  }
}

// The answer, or undefined if the server refused it: of what the view can do without.
export const quietly = (asked) =>
  asked.catch((error) => {
    if (!(error instanceof Refused)) throw error;
  });

export const get = (path, query, where) => request("GET", path, { query, where });
