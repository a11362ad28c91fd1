"""How a directory may be called: one rule for the server, manifests and the command line."""

from __future__ import annotations

import unicodedata
from typing import Final

MAX_NAME: Final = 64  # code points
RULE: Final = f'must be 1 to {MAX_NAME} printable characters without / and \\, and not "." or ".."'


def directory_name(text: str) -> str:
    """`text` as the name of a directory: without outer white space, in NFC. Raises ValueError with the rule."""
    name = unicodedata.normalize("NFC", text.strip())
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable() or {"/", "\\"} & set(name) or name in (".", ".."):
        raise ValueError(RULE)
    return name
