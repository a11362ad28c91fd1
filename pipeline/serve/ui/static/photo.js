// A photo with boxes over the faces. Boxes are [x, y, width, height], fractions of the photo.
import { html, useState } from "./html.js";

const percent = (fraction) => `${fraction * 100}%`;

// `boxes`: [{ box, label, text?, kind?, onChoose?, chosen? }]; those with `onChoose` are buttons. `children` lie over them.
export function Photo({ src, width, height, alt, boxes, children }) {
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
      ${children}
    </div>`;
}
