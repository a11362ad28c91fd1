// A face, and the name of whom it shows.
import { session } from "./api.js";
import { html, useState } from "./html.js";

// `alt` is empty where the name stands beside the picture: a screen reader needs it once.
export function Face({ src, alt = "", eager = false }) {
  const [broken, setBroken] = useState(false);
  if (!src || broken) return html`<span class="face faceless" role="img" aria-label=${alt || "No picture"}>?</span>`;
  return html`<img class="face" src=${src} alt=${alt} loading=${eager ? "eager" : "lazy"} decoding="async"
    width="160" height="160" draggable=${false} onError=${() => setBroken(true)} />`;
}

// For sentences: where a name may turn the direction of what stands around it, it is isolated (Unicode's UAX 9).
const TURNS = /[\u0590-\u08ff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufb1d-\ufdff\ufe70-\ufefc]/;
export const isolated = (text) => (TURNS.test(text) ? `\u2068${text}\u2069` : text);

// As it is shown: names from folders may have underscores for spaces.
export const spaced = (name) => (session.get()?.labelSpaces ? name.replaceAll("_", " ") : name);
export const nameOf = (person) => (person.name ? isolated(spaced(person.name)) : "somebody without a name");
// `unseen` tells those without a name apart for a screen reader.
export const Name = ({ name, unseen }) =>
  name ? html`<bdi dir="auto">${spaced(name)}</bdi>` : html`No name yet${unseen && html`<span class="unseen"> ${unseen}</span>`}`;

// Whom a button chooses: the picture, `before`, the name and the number of photos.
export const Somebody = ({ person, before = "" }) => html`
  <${Face} src=${person.picture} />
  <span>${before}<${Name} name=${person.name} /> <small class="soft">${count(person.photos, "photo")}</small></span>`;

// Why a face has no person; each is said of one face and of several.
const WHY = {
  "center-pose": "turned away",
  sharpness: "not sharp",
  contrast: "little contrast",
  unmatched: "matched nobody",
  deleted: "lost their person",
  nobody: "nobody’s, you said",
  rejected: "too poor to recognise by",
};
export const why = (reason) => WHY[reason] ?? reason;

export const count = (number, one, many = one + "s") => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
