"""Who is signed in to the web UI. In memory only: a restart signs everybody out."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pipeline.errors import SignInRefused, SignInRequired

MAX_SESSIONS: Final = 50  # per account; a further sign-in ends the longest idle one


@dataclass
class Session:
    """One browser of an account."""

    user: str
    account_id: int
    ends: float  # in the clock's time, like `used`
    used: float
    corrections: set[int] = field(default_factory=set)  # that it made, undos included, or undid
    own: set[int] = field(default_factory=set)  # that it made, undos included
    # By directory: those it made that are not known to be undone.
    undoable: dict[str, list[int]] = field(default_factory=dict)

    def note(self, directory: str, correction: int, *, undoable: bool) -> None:
        """Records a correction by this session."""
        self.corrections.add(correction)
        self.own.add(correction)
        if undoable:
            self.undoable.setdefault(directory, []).append(correction)


class Sessions:
    """The sessions of all accounts. Thread-safe; `clock` gives seconds.

    A token is 256 random bits. Only its hash is stored, so that a lookup's time reveals nothing.
    """

    def __init__(self, *, idle_s: float, session_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.idle_s = idle_s
        self.session_s = session_s
        self._clock = clock
        self._sessions: dict[bytes, Session] = {}
        self._lock = threading.Lock()
        self.drops = 0  # number of password changes, which end sessions

    def start(self, user: str, account_id: int, drops: int) -> tuple[str, Session]:
        """Starts a session; returns its token and the session. `drops` is from before the password was checked: raises
        SignInRefused if any password changed meanwhile."""
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
        """Finds a session and marks it as used. Raises SignInRequired."""
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
        """Ends all sessions of a user after a password change."""
        with self._lock:
            self.drops += 1
            for key in [key for key, session in self._sessions.items() if session.user == user]:
                del self._sessions[key]

    def _has_ended(self, session: Session, now: float) -> bool:
        return now >= session.ends or now >= session.used + self.idle_s


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
