"""What commands do with a store: each verb is declared once, and its arguments and answer have types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

import pytest

from pipeline.jobs.store import VERBS, Store
from pipeline.store.local import LocalStore

MOST = 40  # that the remote form of a store is one class, and not a proxy of the catalog's functions


def test_the_verbs_are_few_and_none_gives_out_passwords() -> None:
    assert 15 < len(VERBS) <= MOST
    assert all(VERBS[name] is getattr(Store, name).__wrapped__ for name in VERBS)
    assert not {"close", "credentials", "local", "read", "release", "service", "settings", "submit"} & VERBS.keys()


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_declares_its_types(name: str) -> None:
    types: Mapping[str, Any] = get_type_hints(VERBS[name])
    assert "return" in types
    assert Any not in types.values()
    assert LocalStore not in types.values()
