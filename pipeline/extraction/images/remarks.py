"""Remarks of the libraries that decode, which say nothing to whoever runs facepipe."""

from __future__ import annotations

import re
import warnings
from typing import Final

# As `warnings.filters` holds them: action, message, category, module, line.
_QUIET: Final = (
    # On odd files: a strange EXIF tag, say.
    ("ignore", None, Warning, re.compile(r"PIL\.|pillow_heif"), 0),
    # From torchvision 0.29 on. TorchCodec, which it points to, cannot be had for the versions below.
    ("ignore", re.compile("The image decoding and encoding", re.IGNORECASE), DeprecationWarning, None, 0),
)


def silence_decoders() -> None:
    """Keeps the remarks from being printed or raised, in all threads from now on.

    Filters in front of all others, put there anew when somebody removed them: `warnings.catch_warnings` around the
    decoding would exchange the filters of all threads.
    """
    for entry in _QUIET:
        if entry not in warnings.filters[: len(_QUIET)]:
            _, message, category, module, _ = entry
            warnings.filterwarnings("ignore", _pattern(message), category, _pattern(module))


def _pattern(compiled: re.Pattern[str] | None) -> str:
    return "" if compiled is None else compiled.pattern
