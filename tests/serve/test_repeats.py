"""A client cannot make the log grow by repeating itself."""

from __future__ import annotations

import logging

from pipeline.cli.serve import MOST, WINDOW_S, RepeatFilter


def test_lines_of_one_kind_are_few_and_their_number_is_told() -> None:
    shown: list[str] = []
    now = [0.0]

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            shown.append(record.getMessage())

    handler = Shown()
    handler.addFilter(RepeatFilter(lambda: now[0]))
    log = logging.Logger("test")
    log.addHandler(handler)

    def repeat() -> None:
        for number in range(MOST + 30):
            log.warning("line %d", number)

    repeat()
    log.warning("another kind")
    assert shown == [*(f"line {number}" for number in range(MOST)), "another kind"]
    shown.clear()
    now[0] += WINDOW_S
    repeat()
    assert shown[:2] == ["line 0 (and 30 like it before)", "line 1"]
    assert len(shown) == MOST
    shown.clear()
    for _ in range(2 * MOST):
        log.info("a request")
    for error in (KeyError, ValueError):  # of one line of code, but not of one kind
        for _ in range(MOST):
            log.error("an error", exc_info=error())
    assert len(shown) == 4 * MOST
