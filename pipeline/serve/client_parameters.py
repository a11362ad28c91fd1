"""The names that clients of this header set know, and what they get; docs/clients.md says what each means.

A name that selects, filters or guards a write is never ignored: a server that ignores one destroys data while it says
success. So each is done, or harmless (accepted, without effect on what is stored or answered), or refused unless its
value is neutral. Names that are not here are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pipeline.errors import ParameterUnsupported
from pipeline.serve.request_parsing import Query, finite, text_of

Verdict = Literal["done", "harmless", "refused"]
_ANY_ENDING: Final = "*"
_SHOWN: Final = 100  # characters of a name in a message


@dataclass(frozen=True)
class ClientParameter:
    """A parameter of the query, or a header (X-...). The `neutral` values of a refused one ask for nothing, as an empty
    one does."""

    name: str  # a * at its end stands for any ending
    verdict: Verdict
    neutral: tuple[str, ...] = ()

    @property
    def is_header(self) -> bool:
        return self.name.startswith("X-")

    def covers(self, name: str) -> bool:
        """Whether `name` is this one. The names of headers have no case."""
        own, name = (self.name.lower(), name.lower()) if self.is_header else (self.name, name)
        return name.startswith(own[:-1]) if own.endswith(_ANY_ENDING) else name == own

    def is_neutral(self, value: str) -> bool:
        text = value.strip().lower()
        number = finite(text)
        return not text or any(text == same or (number is not None and number == finite(same)) for same in self.neutral)


def _all(verdict: Verdict, names: str) -> Iterator[ClientParameter]:
    return (ClientParameter(name, verdict) for name in names.split())


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
    ClientParameter("X-RPC-EXP-DATE", "refused", ("0",)),
    ClientParameter("X-RPC-MIN-SIZE-RATIO", "refused", ("0",)),
    *_all(
        "refused",
        "X-RPC-FACES-DETECT-THRESHOLD X-RPC-FACES-PROXIMITY-THRESHOLD X-RPC-LIVENESS-THRESHOLD X-RPC-ACCESS-*",
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


def refuse_unsupported(
    known: Sequence[ClientParameter], query: Query, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Raises ParameterUnsupported for a refused parameter or header that asks for something."""
    refused = [parameter for parameter in known if parameter.verdict == "refused"]
    sent = [(name.decode("latin-1").upper(), text_of(value)) for name, value in headers]
    for are_headers, values in ((True, sent), (False, query.items())):
        for name, value in values:
            for parameter in refused:
                if parameter.is_header == are_headers and parameter.covers(name) and not parameter.is_neutral(value):
                    raise ParameterUnsupported(name=name[:_SHOWN])
