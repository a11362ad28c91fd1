// A photo with boxes over the faces. Boxes are [x, y, width, height], fractions of the photo.
import { Name, nameOf, spaced } from "./face.js";
import { html, useLayoutEffect, useRef, useState } from "./html.js";
import { href } from "./router.js";

const percent = (fraction) => `${fraction * 100}%`;

const MANY = 8; // boxes: of so many, labels show only where one points

// `boxes`: [{ box, label, number?, text?, kind?, onChoose?, chosen? }]; those with `onChoose` are buttons. The text shows on
// the box if there are few, else where it is pointed at, focused or chosen. `children` lie over them.
export function Photo({ src, width, height, alt, boxes, children }) {
  const [broken, setBroken] = useState(!src);
  const shape = (broken ? " broken" : "") + (boxes.length > MANY ? " many" : "");
  return html`
    <div class=${"photo" + shape} style=${{ aspectRatio: `${width} / ${height}`, maxWidth: `min(100%, calc(var(--tallest) * ${width / height}))` }}>
      ${broken
        ? html`<p class="soft">This photo cannot be shown here.</p>`
        : html`<img src=${src} alt=${alt} width=${width} height=${height} onError=${() => setBroken(true)} />`}
      ${boxes.map(({ box: [x, y, w, h], label, number, text, kind = "", chosen, onChoose }) => {
        const style = { left: percent(x), top: percent(y), width: percent(w), height: percent(h) };
        const shown = html`${number && html`<b>${number}</b>${" "}`}${text && html`<span dir="auto">${text}</span>`}`;
        return onChoose
          ? html`<button class=${"box " + kind} style=${style} aria-label=${label} aria-pressed=${Boolean(chosen)} onClick=${onChoose}>${shown}</button>`
          : html`<div class=${"box " + kind} style=${style}>${shown}</div>`;
      })}
      ${children}
    </div>`;
}

// All faces of a photo beside it, by the numbers on it. `faces`: [{ box, person? (with id and name) }]; `nobody`: what is
// said of one without a person.
export function FaceList({ faces, chosen, onChoose, nobody }) {
  const list = useRef(null);
  useLayoutEffect(() => {
    const { current: all } = list;
    const row = all.children[chosen];
    if (!row) return; // the list alone scrolls: scrollIntoView would move the photo, too
    all.scrollTop = Math.min(row.offsetTop, Math.max(all.scrollTop, row.offsetTop + row.offsetHeight - all.clientHeight));
  }, [chosen, faces.length]);
  return html`
    <ol class="on-photo" aria-label="Faces on the photo" ref=${list}>
      ${faces.map(({ person }, place) => html`<li key=${place} class=${place === chosen ? "chosen" : ""}>
        <button class="plain" aria-label=${`Face ${place + 1}`} aria-pressed=${place === chosen} onClick=${() => onChoose(place)}>${place + 1}</button>
        ${person
          ? html`<a href=${href("person", person.id)}><${Name} name=${person.name} unseen=${`face ${place + 1}`} /></a>`
          : html`<span class="soft">${nobody}</span>`}
      </li>`)}
    </ol>`;
}

// Boxes for Photo of the faces of a FaceList.
export const boxesOf = (faces, chosen, onChoose) =>
  faces.map(({ box, person, kind }, place) => ({
    box,
    number: faces.length > 1 && place + 1,
    label: `Face ${place + 1} ${person ? nameOf(person) : "nobody"}`,
    text: person?.name && spaced(person.name),
    kind: kind ?? (person ? "known" : ""),
    chosen: place === chosen,
    onChoose: () => onChoose(place),
  }));
