"""Rules for names, external ids, tags and directory names, shared by the server, manifests and the command line."""

from __future__ import annotations

import os
import re
import unicodedata
from typing import Final

MAX_TEXT: Final = 1_000  # characters
TEXT_RULE: Final = f"at most {MAX_TEXT:,} characters, none of them NUL"
MAX_DIRECTORY_NAME: Final = 64  # code points
DIRECTORY_RULE: Final = f'must be 1 to {MAX_DIRECTORY_NAME} printable characters without / and \\, and not "." or ".."'
# Escaped: undecodable bytes (from os.fsdecode), NUL, and a backslash that reads as an escape.
_ESCAPED = re.compile(r"[\udc80-\udcff\x00]|\\(?=x[0-9a-f]{2})")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def is_unicode(text: str) -> bool:
    """Returns whether `text` has no lone surrogates, which UTF-8 cannot encode."""
    return _SURROGATE.search(text) is None


def is_text(text: str) -> bool:
    """Returns whether a store can keep `text`. JSON may contain NUL and lone surrogates; command-line bytes that are
    not UTF-8 become lone surrogates, too."""
    return len(text) <= MAX_TEXT and "\0" not in text and is_unicode(text)


def counted(count: int, noun: str, plural: str = "") -> str:
    """As in "1 photo" or "1,000 photos"."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def install_extra(extra: str) -> str:
    """How to install an extra: facepipe is on no package index, where anybody could take its name."""
    return f"pip install -e '.[{extra}]' in facepipe's checkout"


def nfc(name: str) -> str:
    """Normalises a name for comparison. Names are stored as sent; external ids are compared unchanged."""
    return unicodedata.normalize("NFC", name)


def isolated(name: str) -> str:
    """For a sentence: between isolates (Unicode's UAX 9) if it may turn the direction of what stands around it."""
    turns = any(unicodedata.bidirectional(c) in {"R", "AL", "AN"} or unicodedata.category(c) == "Cf" for c in name)
    return f"\u2068{name}\u2069" if turns else name


def same_name(one: str | None, other: str | None) -> bool:
    return nfc(one or "") == nfc(other or "")


def directory_name(text: str) -> str:
    """Returns `text` as a directory name: stripped, in NFC. Raises ValueError with the rule."""
    name = nfc(text.strip())
    fits = 1 <= len(name) <= MAX_DIRECTORY_NAME and name.isprintable()
    if not fits or {"/", "\\"} & set(name) or name in (".", ".."):
        raise ValueError(DIRECTORY_RULE)
    return name


def path_text(path: str | os.PathLike[str]) -> str:
    r"""`path` as valid UTF-8 text, unique per path.

    Bytes that are not UTF-8 become `\xff`, a backslash before `x` and two digits `\x5c`.
    """
    text = _ESCAPED.sub(lambda match: f"\\x{ord(match[0]) & 0xFF:02x}", os.fspath(path))
    # Surrogates that stand for no byte: no such file exists, but its name is shown.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
