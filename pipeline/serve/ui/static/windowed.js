// A grid of any length of which only the rows near the screen exist: ten thousand cards would make each scroll slow.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";

const BELOW_PX = 80; // the bar at the bottom of the page
const ROWS_AROUND = 4; // drawn above and below what is seen, so that Tab and a quick scroll find them there

const shapes = new Map(); // by label, as last measured: { columns, height of a row with the gap in pixels }

// `draw(item, index)` gives the <li> of an item, with its place (from 1) as aria-posinset; all have one height, and the
// first link or button of each is its one Tab stop, between which arrow keys go. `onKey(event, item, index)` is called for
// other keys there. `onEnd` is called whenever the end is near, until there is `done`. `reveal`: the index to scroll to.
export function WindowedGrid({ items, draw, onEnd, done, label, onKey, reveal }) {
  const outer = useRef(null);
  const grid = useRef(null);
  const end = useRef(null);
  const [shape, setShape] = useState(shapes.get(label) ?? { columns: 1, height: 240 });
  const [rows, setRows] = useState([0, 12]);
  const [near, setNear] = useState(false); // the end is

  useLayoutEffect(() => {
    const measure = () => {
      const style = getComputedStyle(grid.current);
      const columns = style.gridTemplateColumns.split(" ").length;
      const card = grid.current.firstElementChild;
      const height = card ? card.getBoundingClientRect().height + parseFloat(style.rowGap) : 0;
      if (!height) return;
      setShape((old) => (old.columns === columns && old.height === height ? old : { columns, height }));
      shapes.set(label, { columns, height });
    };
    const observer = new ResizeObserver(measure);
    observer.observe(grid.current);
    return () => observer.disconnect();
  }, []);

  useLayoutEffect(() => {
    let frame = 0;
    const look = () => {
      frame = 0;
      const top = -outer.current.getBoundingClientRect().top;
      const first = Math.max(0, Math.floor(top / shape.height) - ROWS_AROUND);
      const last = Math.ceil((top + innerHeight) / shape.height) + ROWS_AROUND;
      setRows((old) => (old[0] === first && old[1] === last ? old : [first, Math.max(last, first)]));
    };
    const scrolled = () => (frame ||= requestAnimationFrame(look));
    look();
    addEventListener("scroll", scrolled, { passive: true });
    addEventListener("resize", scrolled);
    return () => {
      cancelAnimationFrame(frame);
      removeEventListener("scroll", scrolled);
      removeEventListener("resize", scrolled);
    };
  }, [shape]);

  useEffect(() => {
    const observer = new IntersectionObserver((seen) => setNear(seen.at(-1).isIntersecting), { rootMargin: "1500px" });
    observer.observe(end.current);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (near && !done) onEnd();
  }, [near, done, items.length]);

  useLayoutEffect(() => {
    if (reveal == null || reveal < 0) return;
    const top = outer.current.getBoundingClientRect().top + Math.floor(reveal / shape.columns) * shape.height;
    if (top < 0 || top + shape.height > innerHeight - BELOW_PX) scrollBy(0, top - innerHeight / 3);
  }, [reveal]);

  const press = (event) => {
    const card = event.target.closest("li[aria-posinset]");
    if (!card || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=checkbox])")) return;
    const place = Number(card.getAttribute("aria-posinset")) - 1;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -shape.columns, ArrowDown: shape.columns };
    if (!Object.hasOwn(steps, event.key)) return onKey?.(event, items[place], place);
    const next = grid.current.querySelector(`li[aria-posinset="${place + steps[event.key] + 1}"] :is(a, button)`);
    event.preventDefault();
    next?.focus();
  };

  const all = Math.ceil(items.length / shape.columns);
  const from = Math.min(rows[0], Math.max(0, all - 1));
  const shown = items.slice(from * shape.columns, rows[1] * shape.columns);
  return html`
    <div class="window" ref=${outer} style=${{ height: `${all * shape.height}px` }}>
      <ul class="grid" ref=${grid} aria-label=${label} onKeyDown=${press} style=${{ transform: `translateY(${from * shape.height}px)` }}>
        ${shown.map((item, place) => draw(item, from * shape.columns + place))}
      </ul>
    </div>
    <div ref=${end}></div>`;
}
