"""The names that clients of this header set know, and what they get; docs/clients.md says what each means.

A name that selects, filters or guards a write is never ignored: a server that ignores one destroys data while it says
success. So each is done, or harmless (accepted, without effect on what is stored or answered), or refused unless its
value is neutral or the call can write nothing. Names that are not here are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pipeline.errors import ParameterUnsupported
from pipeline.serve.request_parsing import Query, finite, text_of

Verdict = Literal["done", "harmless", "refused"]
_ANY_ENDING: Final = "*"
_PREFIX: Final = "x-rpc-"
_SHOWN: Final = 100  # characters of a name in a message


@dataclass(frozen=True)
class ClientParameter:
    """A parameter of the query, or a header (X-...), by the form that clients mostly send. The `neutral` values of a
    refused one ask for nothing, as an empty one does."""

    name: str  # a * at its end stands for any ending
    verdict: Verdict
    neutral: tuple[str, ...] = ()

    @property
    def is_header(self) -> bool:
        return self.name.startswith("X-")

    @property
    def stem(self) -> str:
        """The name that its forms share: a header is the parameter with X-RPC- before it, in any case."""
        return _stem(self.name)

    def is_neutral(self, value: str) -> bool:
        text = value.strip().lower()
        number = finite(text)
        return not text or any(text == same or (number is not None and number == finite(same)) for same in self.neutral)


def _stem(name: str) -> str:
    return name.lower().removeprefix(_PREFIX)


def _all(verdict: Verdict, names: str, neutral: tuple[str, ...] = ()) -> Iterator[ClientParameter]:
    return (ClientParameter(name, verdict, neutral) for name in names.split())


POST_PEOPLE: Final[Sequence[ClientParameter]] = (
    *_all(
        "done",
        "closest-only-x closest-only-y largest-only larger-than update-person-id merge-with X-RPC-ROOT-PERSON-ID"
        " min-size X-RPC-MIN-SIZE update-if-lower-quality update-if-older-than provide-face-id"
        " X-RPC-PERSON-FIRST-NAME X-RPC-PERSON-FIRST-NAME-BASE64 X-RPC-PERSON-LAST-NAME X-RPC-PERSON-LAST-NAME-BASE64"
        " X-RPC-PERSON-TAGS X-RPC-PERSON-TYPE X-RPC-GENDER X-RPC-AGE X-RPC-DATE-OF-BIRTH X-RPC-GROUPS"
        " X-RPC-GROUPS-BASE64",
    ),
    *_all(
        "harmless",
        "merge differentiate regroup linear-match insert-profile insert-unconfirmed match-unconfirmed verbose"
        " detect-age detect-gender detect-sentiment detect-mask detect-occlusion site source X-RPC-SITE X-RPC-SOURCE"
        " event event-id start-time end-time context type include-expired X-FEED-ID X-RPC-MASK-* X-RPC-FACES-DETECTED",
    ),
    ClientParameter("max-occlusion", "refused", ("-1", "1")),
    ClientParameter("detect-liveness", "refused", ("none",)),
    *_all(
        "refused",
        "X-RPC-EXP-DATE X-RPC-MIN-SIZE-RATIO X-RPC-FACES-DETECT-THRESHOLD X-RPC-FACES-PROXIMITY-THRESHOLD"
        " X-RPC-LIVENESS-THRESHOLD X-RPC-ACCESS-*",
        ("0",),
    ),
)
# Of `GET /people` and `GET /rootpeople`.
FILTERS: Final[Sequence[ClientParameter]] = tuple(
    _all(
        "refused",
        "home-location-pattern access-* min-access-clearance-level max-access-clearance-level face-id has-docs"
        " has-notes invite-account-role zones minimum-center-pose-quality",
    )
)


class Refused:
    """The refused ones of some parameters, found by the names that a request has."""

    def __init__(self, known: Sequence[ClientParameter]) -> None:
        rows = {row.stem: row for row in known if row.verdict == "refused"}
        self._exact = rows
        self._by_beginning = {stem[:-1]: row for stem, row in rows.items() if stem.endswith(_ANY_ENDING)}

    def check(self, query: Query, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Raises ParameterUnsupported for a parameter or a header that asks for something."""
        for name, value in query.items():
            self._check(name, value)
        for raw_name, raw_value in headers:
            name = raw_name.decode("latin-1")
            if name.startswith(_PREFIX):
                self._check(name.upper(), text_of(raw_value))

    def _check(self, name: str, value: str) -> None:
        stem = _stem(name)
        row = self._exact.get(stem) or next(
            (row for beginning, row in self._by_beginning.items() if stem.startswith(beginning)), None
        )
        if row is not None and not row.is_neutral(value):
            raise ParameterUnsupported(name=name[:_SHOWN])


REFUSED_IN_POSTS: Final = Refused(POST_PEOPLE)
REFUSED_FILTERS: Final = Refused(FILTERS)
