"""Image addresses: where a client finds a stored image (contract, 2.2)."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config import ServeSettings
from pipeline.errors import UsageError

LOCAL, CLOUD = "local", "cloud"
_LOCAL_SCHEME = "cvos"
_CLOUD_SCHEME = "https"


@dataclass(frozen=True)
class ImageAddresses:
    """Makes an image's address of its guid."""

    prefix: str  # scheme://[host[/path]/]obj/

    @classmethod
    def from_settings(cls, settings: ServeSettings) -> ImageAddresses:
        """`cvos://obj/` on a local host, or what `public_url` and `object_scheme` say; `https://<public host>/obj/`
        in cloud hosting. Raises UsageError where cloud hosting has no `public_url`."""
        given, _, place = (settings.public_url or "").strip().rstrip("/").rpartition("://")
        if settings.hosting == CLOUD:
            if not place:
                raise UsageError(message="Cloud hosting needs --public-url, the host that clients reach.")
            return cls(f"{settings.object_scheme or _CLOUD_SCHEME}://{place}/obj/")
        if not place:
            return cls(f"{settings.object_scheme or _LOCAL_SCHEME}://obj/")
        return cls(f"{settings.object_scheme or given or 'http'}://{place}/obj/")

    def of(self, guid: str) -> str:
        return self.prefix + guid
