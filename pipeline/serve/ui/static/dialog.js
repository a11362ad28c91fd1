// Dialogs over the page: the browser's own, which keeps the focus inside and closes on Escape.
import { html, useEffect, useLayoutEffect, useRef } from "./html.js";
import { observable, useObservable } from "./observable.js";

// `onClose`: asked to leave it; without it, it cannot be left. `label`: what a screen reader says of it.
export function Dialog({ label, onClose, wide, children }) {
  const element = useRef(null);
  const before = useRef(document.activeElement);
  useLayoutEffect(() => element.current.showModal(), []); // at once: the next key is the dialog's
  useEffect(() => () => before.current?.isConnected && before.current.focus(), []); // once the dialog is gone
  const cancel = (event) => {
    event.preventDefault();
    onClose?.();
  };
  const press = (event) => event.target === element.current && onClose?.(); // outside of it
  const closed = () => (onClose ? onClose() : element.current?.showModal()); // a second Escape closes it all the same
  return html`<dialog ref=${element} class=${wide ? "wide" : ""} aria-label=${label} onCancel=${cancel} onClose=${closed}
    onMouseDown=${press}>${children}</dialog>`;
}

const asked = observable(null);

addEventListener("hashchange", () => asked.get()?.answer(null)); // it was about the view that was left

// Asks something and waits: `draw(answer)` gives what the dialog holds. Null where it was left.
export function ask(label, draw, wide = false) {
  asked.get()?.answer(null);
  return new Promise((done) => {
    const answer = (value) => {
      if (asked.get() === question) asked.set(null);
      done(value);
    };
    const question = { label, draw, answer, wide };
    asked.set(question);
  });
}

// A question with a button for each answer: { answer: text }, the first one the main one.
export function askWhich(label, question, answers) {
  return ask(label, (answer) => html`
    <h2>${label}</h2>
    ${question}
    <div class="row">
      <button class="plain" onClick=${() => answer(null)}>Cancel</button>
      ${Object.entries(answers).reverse().map(
        ([value, text], place, all) =>
          html`<button class=${place === all.length - 1 ? "main" : ""} onClick=${() => answer(value)}>${text}</button>`,
      )}
    </div>`);
}

export function Asked() {
  const question = useObservable(asked);
  if (!question) return null;
  const { label, draw, answer, wide } = question;
  return html`<${Dialog} key=${question} label=${label} wide=${wide} onClose=${() => answer(null)}>${draw(answer)}<//>`;
}
