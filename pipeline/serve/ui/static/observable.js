// A value that several parts of the page look at: each is drawn anew when it changes.
import { useEffect, useState } from "./html.js";

export function observable(value) {
  const watchers = new Set();
  return {
    get: () => value,
    set(next) {
      value = next;
      for (const watch of [...watchers]) watch(next);
    },
    watch(watcher) {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
  };
}

export function useObservable(source) {
  const [value, show] = useState(source.get());
  useEffect(() => {
    show(source.get()); // it may have changed since the first drawing
    return source.watch(show);
  }, [source]);
  return value;
}
