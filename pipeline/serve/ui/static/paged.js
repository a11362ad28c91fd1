// A list that comes page by page, each page asked for by the key of the one before.
import { Refused, get } from "./api.js";
import { useEffect, useRef, useState } from "./html.js";
import { say } from "./corrections.js";

const NONE = { items: [], done: false, asOf: null, total: null, next: null };

// `path` and `query` say what is listed, `key` names the list in the answer; it begins anew when they or `anew` change.
// `kept`: the list as it was left, which is not asked for again.
// Returns { items, done, total, asOf, answer (the last one), next, loading, more(), change(items => items) }.
export function usePaged(path, query, key, anew, kept = null) {
  const [list, setList] = useState(kept ?? NONE);
  const has = useRef(kept != null);
  const asked = useRef({ turn: 0, busy: false, next: kept?.next ?? null });
  const wanted = JSON.stringify([path, query]);

  const more = async (fresh = false) => {
    if (!fresh && (asked.current.busy || asked.current.next == null)) return;
    const turn = fresh ? ++asked.current.turn : asked.current.turn;
    asked.current.busy = true;
    try {
      const answer = await get(path, { ...query, after: fresh ? null : asked.current.next });
      if (turn !== asked.current.turn) return; // another list is wanted by now
      asked.current.next = answer.next;
      setList((old) => ({
        items: fresh ? answer[key] : [...old.items, ...answer[key]],
        done: answer.next == null,
        next: answer.next,
        asOf: fresh ? answer.asOf : old.asOf,
        total: answer.total,
        answer,
        loading: false,
      }));
      asked.current.busy = false;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (turn !== asked.current.turn) return;
      asked.current.busy = false;
      setList((old) => ({ ...old, done: true, loading: false }));
      say(error.message, true);
    }
  };
  useEffect(() => {
    if (has.current) return void (has.current = false);
    setList((old) => ({ ...old, loading: true })); // the old ones stay until the new ones are there
    more(true);
  }, [wanted, anew]);
  useEffect(() => () => asked.current.turn++, []); // nobody wants what comes after the view was left
  const change = (make) =>
    setList((old) => {
      const items = make(old.items);
      return { ...old, items, total: old.total == null ? null : old.total + items.length - old.items.length };
    });
  return { ...list, more: () => more(), change };
}
