// What stands around each view: the navigation above, the bar with the last change and its undoing below.
import { directory, gone, session } from "./api.js";
import { isOffered, last, pending, said, signOutInTurn, undo } from "./corrections.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { useObservable } from "./observable.js";
import { go, href, useRoute } from "./router.js";

const VIEWS = {
  people: "People",
  unassigned: "Unassigned",
  review: "Review",
  recognise: "Recognise",
  changes: "Changes",
  store: "Store",
};

const SHOWN_MS = 10_000;

export function Top() {
  const route = useRoute();
  const { user, directories } = useObservable(session);
  const here = useObservable(directory);
  const choose = (event) => {
    directory.set(event.currentTarget.value);
    go("people");
  };
  return html`
    <header class="top">
      <nav aria-label="Views">
        ${Object.entries(VIEWS).map(([view, title]) => {
          const current = route.view === view || (view === "people" && route.view === "person");
          return html`<a href=${href(view)} aria-current=${current ? "page" : null}>${title}</a>`;
        })}
      </nav>
      ${directories.length > 1 &&
      html`<select aria-label="Directory" value=${here} onChange=${choose}>
        ${directories.map(({ name }) => html`<option value=${name}>${name}</option>`)}
      </select>`}
      <button class="plain out" onClick=${signOutInTurn}>Sign out <bdi class="soft">${user}</bdi></button>
    </header>`;
}

export function Gone() {
  const away = useObservable(gone);
  return html`<div role="alert">
    ${away && html`<p class="warning gone">The server does not answer. Trying again; what you typed stays here.</p>`}
  </div>`;
}

const isTyping = (event) =>
  event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input:not([type=checkbox]), select, textarea");

// Calls what `keys` has for a key, unless it is held down, part of a text, or meant for a dialog.
export function useKeys(keys) {
  const current = useRef(keys);
  current.current = keys;
  useEffect(() => {
    const press = (event) => {
      const pressed = Object.hasOwn(current.current, event.key) && current.current[event.key];
      if (!pressed || event.repeat || event.ctrlKey || event.metaKey || event.altKey || isTyping(event) || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      pressed();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

// What was done last, for a while; the view Changes keeps it. Only what this session did is offered for undoing here. A
// screen reader is told by the unseen words, which are always there.
export function UndoBar() {
  const now = useObservable(said);
  const undoable = useObservable(last);
  const busy = useObservable(pending) > 0;
  const [faded, setFaded] = useState(true);
  const [held, setHeld] = useState(false); // by the mouse or the focus
  useKeys({ u: undo });
  useEffect(() => setFaded(!now), [now]);
  useEffect(() => {
    if (!now || busy || held || now.bad) return undefined;
    const timer = setTimeout(() => setFaded(true), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [now, busy, held]);
  const close = () => {
    setFaded(true);
    document.getElementById("main").focus({ preventScroll: true });
  };
  const text = html`${busy && "Saving: "}<bdi>${now?.text}</bdi>`;
  return html`
    <p class="unseen" role="status">${now && text}</p>
    <div class=${"bar" + (faded ? " faded" : "")} role="region" aria-label="Last change" aria-busy=${busy}
      onPointerEnter=${() => setHeld(true)} onPointerLeave=${() => setHeld(false)} onFocusIn=${() => setHeld(true)} onFocusOut=${() => setHeld(false)}>
      <span class=${"said" + (now?.bad ? " warning" : "")}>${text}</span>
      ${isOffered(undoable, now) &&
      html`<button onClick=${undo} disabled=${Boolean(undoable.blocked)} title=${undoable.blocked} aria-disabled=${busy} aria-keyshortcuts="u">
        Undo${now?.text !== undoable.text && html`: <bdi class="soft">${undoable.text}</bdi>`} <kbd>U</kbd>
      </button>`}
      <button class="plain" aria-label="Close" onClick=${close}>×</button>
    </div>`;
}
