"""What clients need that were written for the well-known service with the same headers; docs/existing-clients.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from pipeline.config import ServeSettings
from pipeline.serve.serializer import CLOUD

OBJECT_PORT: Final = 8086
CLOUD_SCHEME: Final = "ehttps"  # tells those clients that what they download is encrypted


def for_existing_clients(settings: ServeSettings) -> ServeSettings:
    """`settings` with what existing clients need, wherever they say nothing else than the defaults."""
    needed: dict[str, Any] = {"person_headers": "optional", "object_port": OBJECT_PORT}
    if settings.hosting == CLOUD:
        needed["object_scheme"] = CLOUD_SCHEME
    default = ServeSettings()
    return replace(settings, **{k: v for k, v in needed.items() if getattr(settings, k) == getattr(default, k)})
