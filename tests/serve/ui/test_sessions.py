"""The memory of who is signed in."""

from __future__ import annotations

import pytest

from pipeline.errors import SignInRefused, SignInRequired
from pipeline.serve.ui.sessions import MAX_SESSIONS, Sessions


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make() -> tuple[Sessions, Clock]:
    clock = Clock()
    return Sessions(idle_s=10, session_s=30, clock=clock), clock


def lasts(sessions: Sessions, token: str) -> bool:
    try:
        sessions.find(token)
    except SignInRequired:
        return False
    return True


def test_a_session_ends_when_nothing_is_asked_and_in_any_case() -> None:
    sessions, clock = make()
    token, session = sessions.start("ann", 1, 0)
    assert sessions.find(token) is session
    for clock.now in (9, 18, 27):
        assert lasts(sessions, token)
    assert sessions.seconds_left(session) == 3
    clock.now = 30
    assert not lasts(sessions, token)
    idle, _ = sessions.start("ann", 1, 0)
    clock.now = 40
    assert not lasts(sessions, idle)


def test_the_session_of_an_account_that_was_idle_longest_gives_way() -> None:
    sessions, clock = make()
    other, _ = sessions.start("bob", 2, 0)
    tokens = []
    for place in range(MAX_SESSIONS):
        clock.now = place / 100
        tokens.append(sessions.start("ann", 1, 0)[0])
    clock.now = 1
    assert lasts(sessions, tokens[0])
    sessions.start("ann", 1, 0)
    assert [lasts(sessions, token) for token in tokens[:3]] == [True, False, True]
    assert lasts(sessions, other)


def test_a_new_password_ends_the_sessions_of_its_user_and_sign_ins_with_the_old_one() -> None:
    sessions, _ = make()
    ann, _ = sessions.start("ann", 1, 0)
    bob, _ = sessions.start("bob", 2, 0)
    before = sessions.drops
    sessions.drop("ann")
    assert not lasts(sessions, ann)
    assert lasts(sessions, bob)
    with pytest.raises(SignInRefused):
        sessions.start("ann", 1, before)
    assert lasts(sessions, sessions.start("ann", 1, sessions.drops)[0])


def test_a_session_that_was_ended_is_over() -> None:
    sessions, _ = make()
    token, _ = sessions.start("ann", 1, 0)
    sessions.end(token)
    sessions.end(None)
    assert not lasts(sessions, token)
    for wrong in ("", token[:-1], "x"):
        assert not lasts(sessions, wrong)
