"""Names known to clients of this header set that are refused; docs/clients.md says what each means.

A name that selects, filters or guards a write is never ignored: that could destroy data while reporting success. It is
either implemented (`request_parsing`, `person_parsing`, `listing`), or harmless (accepted without effect on stored data
or answers), or refused unless its value is neutral or the call writes nothing. Other names are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pipeline.errors import ParameterUnsupported
from pipeline.serve.request_parsing import Query, finite, text_of

_PREFIX: Final = "x-rpc-"  # a header is the parameter with this prefix, in any case
_ACCESS: Final = "access-"  # stands for every name with this prefix
_SHOWN: Final = 100  # characters of a name in a message

# Name -> neutral values, which request nothing; so does an empty one.
REFUSED_IN_POSTS: Final[Mapping[str, tuple[str, ...]]] = {
    "max-occlusion": ("-1", "1"),
    "detect-liveness": ("none",),
    "exp-date": ("0",),
    "min-size-ratio": ("0",),
    "faces-detect-threshold": ("0",),
    "faces-proximity-threshold": ("0",),
    "liveness-threshold": ("0",),
    _ACCESS: ("0",),
}
REFUSED_FILTERS: Final[Mapping[str, tuple[str, ...]]] = {  # of `GET /people` and `GET /rootpeople`
    "home-location-pattern": (),
    "min-access-clearance-level": (),
    "max-access-clearance-level": (),
    "face-id": (),
    "has-docs": (),
    "has-notes": (),
    "invite-account-role": (),
    "zones": (),
    "minimum-center-pose-quality": (),
    _ACCESS: (),
}


def check_refused(
    refused: Mapping[str, tuple[str, ...]], query: Query, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Raises ParameterUnsupported for a refused parameter or header unless its value is neutral."""
    sent = [*query.items()]
    for name, value in headers:
        if name.startswith(_PREFIX.encode()):
            sent.append((name.decode("latin-1").upper(), text_of(value)))
    for shown, text in sent:
        stem = shown.lower().removeprefix(_PREFIX)
        neutral = refused.get(_ACCESS if stem.startswith(_ACCESS) else stem)
        if neutral is not None and not _is_neutral(text, neutral):
            raise ParameterUnsupported(name=shown[:_SHOWN])


def _is_neutral(value: str, neutral: tuple[str, ...]) -> bool:
    text = value.strip().lower()
    number = finite(text)
    return not text or any(text == same or (number is not None and number == finite(same)) for same in neutral)
