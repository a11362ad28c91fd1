// The page: who is signed in, and the view that the address names.
import { directory, ended, findSession, session } from "./api.js";
import { Changes } from "./changes.js";
import { changed, findLast, forgetShown, heard, showAnew } from "./corrections.js";
import { Asked, Dialog } from "./dialog.js";
import { Gone, Top, UndoBar } from "./frame.js";
import { html, render, useEffect, useLayoutEffect, useRef } from "./html.js";
import { useObservable } from "./observable.js";
import { People } from "./people.js";
import { Person } from "./person.js";
import { Recognise } from "./recognise.js";
import { Review } from "./review.js";
import { useRoute, useTitle } from "./router.js";
import { SignIn } from "./signin.js";
import { Store } from "./store.js";
import { Twice } from "./twice.js";
import { Unassigned } from "./unassigned.js";

const TITLES = { unassigned: "Unassigned", review: "Review", recognise: "Recognise", changes: "Changes", store: "Store", person: "A person" };
const VIEWS = {
  people: People,
  person: Person,
  unassigned: Unassigned,
  review: Review,
  "review/twice": Twice,
  recognise: Recognise,
  changes: Changes,
  store: Store,
};

function View() {
  const route = useRoute();
  const here = useObservable(directory);
  const anew = useObservable(changed);
  const main = useRef(null);
  const first = useRef(true);
  useLayoutEffect(() => {
    if (!first.current) main.current.focus({ preventScroll: true }); // a screen reader goes on where the view begins
    first.current = false;
    scrollTo(0, 0);
  }, [route.view, route.id]);
  const others = useObservable(heard);
  useEffect(() => {
    if (!others || route.view === "people") return; // which looks at these people only, and keeps its place
    if (route.view !== "person" || others.includes(route.id)) showAnew();
  }, [others]);
  useTitle(TITLES[route.view] ?? "People");
  const name = [`${route.view}/${route.id}`, route.view].find((one) => Object.hasOwn(VIEWS, one));
  const Shown = VIEWS[name ?? "people"];
  const key = [route.view, route.id, here].join("/");
  useLayoutEffect(() => forgetShown, [key, JSON.stringify(route.settings)]);
  return html`<main id="main" tabindex="-1" ref=${main}>
    <${Shown} key=${key} id=${route.id} settings=${route.settings} anew=${anew} />
  </main>`;
}

function Page() {
  const who = useObservable(session);
  const over = useObservable(ended);
  const here = useObservable(directory);
  useEffect(() => {
    if (who) findLast();
  }, [who?.user, here]);
  if (who === undefined) return html`<${Gone} />`;
  if (who === null) return html`<${Gone} /><main class="alone"><${SignIn} /></main>`;
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <${Gone} /><${Top} /><${View} /><${UndoBar} /><${Asked} />
    ${over &&
    html`<${Dialog} label="Sign in">
      <${SignIn} user=${who.user} why="Your session has ended. Sign in, and go on where you were." />
    <//>`}`;
}

function skip(event) {
  event.preventDefault(); // the part after the # names the view
  document.getElementById("main").focus();
}

render(html`<${Page} />`, document.getElementById("app"));
findSession();
