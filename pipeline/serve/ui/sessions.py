"""Who is signed in on the page. In memory only: a restart signs everybody out."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pipeline.errors import SignInRefused, SignInRequired

MAX_SESSIONS: Final = 50  # of an account; a further sign-in ends the one that was idle longest


@dataclass
class Session:
    """One browser of an account."""

    user: str
    account_id: int
    ends: float  # as the clock says, like `used`
    used: float
    corrections: set[int] = field(default_factory=set)  # that it made, undos included, or undid
    own: set[int] = field(default_factory=set)  # that it made, undos included
    # By directory: those that it made, and that are not known to be undone.
    undoable: dict[str, list[int]] = field(default_factory=dict)

    def note(self, directory: str, correction: int, *, undoable: bool) -> None:
        """It has made a correction."""
        self.corrections.add(correction)
        self.own.add(correction)
        if undoable:
            self.undoable.setdefault(directory, []).append(correction)


class Sessions:
    """The sessions of all accounts. Any thread may call it; `clock` gives seconds.

    A token is 256 random bits. Only its hash is kept, so that a lookup tells nothing by its time.
    """

    def __init__(self, *, idle_s: float, session_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.idle_s = idle_s
        self.session_s = session_s
        self._clock = clock
        self._sessions: dict[bytes, Session] = {}
        self._lock = threading.Lock()
        self.drops = 0  # how often sessions were ended because a password changed

    def start(self, user: str, account_id: int, drops: int) -> tuple[str, Session]:
        """A new session and its token. `drops` is from before the password was checked: raises SignInRefused if one
        was changed meanwhile, which may be this one."""
        now, token = self._clock(), secrets.token_urlsafe(32)
        session = Session(user, account_id, ends=now + self.session_s, used=now)
        with self._lock:
            if drops != self.drops:
                raise SignInRefused()
            for key in [key for key, old in self._sessions.items() if self._has_ended(old, now)]:
                del self._sessions[key]
            own = [key for key, old in self._sessions.items() if old.account_id == account_id]
            if len(own) >= MAX_SESSIONS:
                del self._sessions[min(own, key=lambda key: self._sessions[key].used)]
            self._sessions[_key(token)] = session
        return token, session

    def find(self, token: str | None) -> Session:
        """The session, which is used now. Raises SignInRequired."""
        now = self._clock()
        with self._lock:
            session = self._sessions.get(_key(token or ""))
            if session is None or self._has_ended(session, now):
                raise SignInRequired()
            session.used = now
        return session

    def seconds_left(self, session: Session) -> float:
        """How long it lasts at most."""
        return session.ends - self._clock()

    def end(self, token: str | None) -> None:
        with self._lock:
            self._sessions.pop(_key(token or ""), None)

    def drop(self, user: str) -> None:
        """Ends all sessions of a user whose password has changed."""
        with self._lock:
            self.drops += 1
            for key in [key for key, session in self._sessions.items() if session.user == user]:
                del self._sessions[key]

    def _has_ended(self, session: Session, now: float) -> bool:
        return now >= session.ends or now >= session.used + self.idle_s


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
