// A face, and the name of whom it shows.
import { html, useState } from "./html.js";

// `alt` is empty where the name stands beside the picture: a screen reader needs it once.
export function Face({ src, alt = "", eager = false }) {
  const [broken, setBroken] = useState(false);
  if (!src || broken) return html`<span class="face faceless" role="img" aria-label=${alt || "No picture"}>?</span>`;
  return html`<img class="face" src=${src} alt=${alt} loading=${eager ? "eager" : "lazy"} decoding="async"
    width="160" height="160" draggable=${false} onError=${() => setBroken(true)} />`;
}

// For sentences. Where a name is drawn it is <Name>: its direction must not turn what stands around it.
export const nameOf = (person) => person.name || "somebody without a name";
export const Name = ({ name }) => (name ? html`<bdi dir="auto">${name}</bdi>` : "No name yet");

// Whom a button chooses: the picture, `before`, the name and the number of photos.
export const Somebody = ({ person, before = "" }) => html`
  <${Face} src=${person.picture} />
  <span>${before}<${Name} name=${person.name} /> <small class="soft">${count(person.photos, "photo")}</small></span>`;

export const count = (number, one, many = one + "s") => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
