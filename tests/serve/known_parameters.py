"""The names that clients of the header set know, each with what it gets; docs/clients.md says what each means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["done", "harmless", "refused"]


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
        """The name that its forms share, as the server has it."""
        return self.name.lower().removeprefix("x-rpc-").removesuffix("*")


def _all(verdict: Verdict, names: str, neutral: tuple[str, ...] = ()) -> Iterator[ClientParameter]:
    return (ClientParameter(name, verdict, neutral) for name in names.split())


POST_PEOPLE: Sequence[ClientParameter] = (
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
FILTERS: Sequence[ClientParameter] = tuple(
    _all(
        "refused",
        "home-location-pattern access-* min-access-clearance-level max-access-clearance-level face-id has-docs"
        " has-notes invite-account-role zones minimum-center-pose-quality",
    )
)
