// Which cards of a grid are chosen: one after another, or with Shift all from the last one to this.
import { html, useEffect, useRef, useState } from "./html.js";

// `all` items of the grid, each with an `id`. None is chosen any more once one of `parts`, which say what is listed, changes.
// Returns { items (a Map by id), has(id), toggle(item, place, range), clear() }.
export function useChosen(all, ...parts) {
  const [items, setItems] = useState(new Map());
  const last = useRef(null); // the place of the one that was chosen or left out last
  const clear = () => {
    last.current = null;
    setItems(new Map());
  };
  useEffect(clear, parts);
  const toggle = (item, place, range = false) => {
    const next = new Map(items);
    const from = range && last.current != null ? last.current : place;
    const chooses = !items.has(item.id);
    for (const one of all.slice(Math.min(from, place), Math.max(from, place) + 1)) {
      if (chooses) next.set(one.id, one);
      else next.delete(one.id);
    }
    last.current = place;
    setItems(next);
  };
  return { items, has: (id) => items.has(id), toggle, clear };
}

// The bar over the grid while something is chosen. `children`: what can be done with it.
export const ChosenBar = ({ chosen, label, children }) =>
  chosen.items.size > 0 &&
  html`<div class="chosen-bar row" role="region" aria-label=${label}>
    <strong class="spread" role="status">${chosen.items.size} chosen</strong>
    ${children}
    <button class="plain" onClick=${chosen.clear}>Clear</button>
  </div>`;
