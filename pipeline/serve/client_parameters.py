"""Parameters that clients of this header set know and we don't have. One that selects or filters is refused rather than
ignored: whoever deletes all that a filtered listing answers would delete everybody."""

from __future__ import annotations

from typing import Final

from pipeline.errors import ParameterUnsupported
from pipeline.serve.request_parsing import Query

# Filters of `GET /people` and `GET /rootpeople`, refused unless empty; and any other name with this beginning.
REFUSED_FILTERS: Final = frozenset(
    {
        "home-location-pattern",
        "min-access-clearance-level",
        "max-access-clearance-level",
        "face-id",
        "has-docs",
        "has-notes",
        "invite-account-role",
        "zones",
        "minimum-center-pose-quality",
    }
)
_REFUSED_PREFIX: Final = "access-"


def check_filters(query: Query) -> None:
    """Raises ParameterUnsupported."""
    for name, value in query.items():
        if value and (name in REFUSED_FILTERS or name.startswith(_REFUSED_PREFIX)):
            raise ParameterUnsupported(name=name)
