"""Changes of people as requests to a server ask for them."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.people.service import IdentityService
from pipeline.store import API, NO_CHANGE, CorrectionRequest, PersonChange


def ask_for(
    service: IdentityService,
    kind: str,
    account_id: int,
    directory: str,
    person_ids: Sequence[str],
    change: PersonChange = NO_CHANGE,
    *,
    anyway: bool = False,
) -> None:
    request = CorrectionRequest(account_id, directory, kind, person_ids, change=change, anyway=anyway, origin=API)
    service.correct(request)
