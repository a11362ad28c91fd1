// What the address says after the #: a view, the id of what it shows, and its settings. So every view can be linked to,
// and the server needs to know one path only.
import { useEffect } from "./html.js";
import { observable, useObservable } from "./observable.js";

function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  let view, id;
  try {
    [view = "", id = ""] = path.split("/").map(decodeURIComponent);
  } catch {
    return { view: "people", id: "", settings: {} }; // cut off, or typed
  }
  return { view: view || "people", id, settings: Object.fromEntries(new URLSearchParams(query)) };
}

const route = observable(parse(location.hash));
addEventListener("hashchange", () => route.set(parse(location.hash)));

export const useRoute = () => useObservable(route);

// The title of the browser's tab, until another view says its own.
export function useTitle(title) {
  useEffect(() => {
    if (title) document.title = `${title} – facepipe`;
  }, [title]);
}

export function href(view, id = "", settings = {}) {
  const wanted = Object.entries(settings).filter(([, value]) => value !== "" && value != null);
  const query = new URLSearchParams(wanted).toString();
  return `#/${view}${id ? "/" + encodeURIComponent(id) : ""}${query ? "?" + query : ""}`;
}

export function go(view, id, settings) {
  location.hash = href(view, id, settings);
}

// In the place of what the address named, to which Back then does not lead.
export const goInstead = (view, id) => location.replace(href(view, id));

// The same view with other settings: no new step of the browser's history.
export function change(settings) {
  const now = route.get();
  history.replaceState(history.state, "", href(now.view, now.id, { ...now.settings, ...settings }));
  route.set(parse(location.hash));
}
