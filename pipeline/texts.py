"""Which texts are kept as a name, an external id, a tag or the name of a directory, and when two names are the same:
one rule for the server, manifests and the command line."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

MAX_TEXT: Final = 1_000  # characters
TEXT_RULE: Final = f"at most {MAX_TEXT:,} characters, none of them NUL"
MAX_DIRECTORY_NAME: Final = 64  # code points
DIRECTORY_RULE: Final = f'must be 1 to {MAX_DIRECTORY_NAME} printable characters without / and \\, and not "." or ".."'
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def is_unicode(text: str) -> bool:
    """Whether `text` is without halves of surrogate pairs, which no UTF-8 can hold."""
    return _SURROGATE.search(text) is None


def is_text(text: str) -> bool:
    """Whether a store can keep `text`: JSON can contain NUL and halves of surrogate pairs, which is also what becomes
    of bytes on a command line that are not UTF-8."""
    return len(text) <= MAX_TEXT and "\0" not in text and is_unicode(text)


def nfc(name: str) -> str:
    """A name as it is compared. Names are stored as they were sent; external ids are compared as they are."""
    return unicodedata.normalize("NFC", name)


def same_name(one: str | None, other: str | None) -> bool:
    return nfc(one or "") == nfc(other or "")


def directory_name(text: str) -> str:
    """`text` as the name of a directory: without outer white space, in NFC. Raises ValueError with the rule."""
    name = nfc(text.strip())
    fits = 1 <= len(name) <= MAX_DIRECTORY_NAME and name.isprintable()
    if not fits or {"/", "\\"} & set(name) or name in (".", ".."):
        raise ValueError(DIRECTORY_RULE)
    return name
