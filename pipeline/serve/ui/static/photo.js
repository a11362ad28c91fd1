// A photo with boxes over the faces. Boxes are [x, y, width, height], fractions of the photo.
import { ask } from "./dialog.js";
import { Face } from "./face.js";
import { html, useState } from "./html.js";

const percent = (fraction) => `${fraction * 100}%`;

// `boxes`: [{ box, label, text?, kind?, onChoose?, chosen? }]; those with `onChoose` are buttons.
export function Photo({ src, width, height, alt, boxes }) {
  const [broken, setBroken] = useState(!src);
  return html`
    <div class=${"photo" + (broken ? " broken" : "")} style=${{ aspectRatio: `${width} / ${height}`, maxWidth: `min(100%, calc(var(--tallest) * ${width / height}))` }}>
      ${broken
        ? html`<p class="soft">This photo cannot be shown here.</p>`
        : html`<img src=${src} alt=${alt} width=${width} height=${height} onError=${() => setBroken(true)} />`}
      ${boxes.map(({ box: [x, y, w, h], label, text, kind = "", chosen, onChoose }) => {
        const style = { left: percent(x), top: percent(y), width: percent(w), height: percent(h) };
        const shown = text && html`<span dir="auto">${text}</span>`;
        return onChoose
          ? html`<button class=${"box " + kind} style=${style} aria-label=${label} aria-pressed=${Boolean(chosen)} onClick=${onChoose}>${shown}</button>`
          : html`<div class=${"box " + kind} style=${style}>${shown}</div>`;
      })}
    </div>`;
}

// A dialog with the photo of a face, or the face alone where the photo may not be shown. `notes`: what is known of it.
export function showFace({ photo, box, picture }, alt, notes) {
  return ask("Photo", (answer) => html`
    ${photo?.picture
      ? html`<${Photo} src=${photo.picture} width=${photo.width} height=${photo.height} alt=${`The photo ${photo.name}`}
          boxes=${[{ box }]} />`
      : html`<div class="single"><${Face} src=${picture} alt=${alt} eager /></div>`}
    <p><bdi>${photo ? photo.path ?? photo.name : "This photo was posted; only the face is kept."}</bdi></p>
    <p class="soft">${notes}</p>
    <div class="row"><button class="main" onClick=${() => answer(null)}>Close</button></div>`, true);
}
