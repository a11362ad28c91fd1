"""A prefix of a bucket as the source of a run: its images, in the byte order of their keys, as the bucket lists them.

An object is an image by its suffix alone, as looking into it would cost a request.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate

from pipeline.config import SourceSettings
from pipeline.errors import ImageOutside
from pipeline.extraction.images.files import object_state, shown
from pipeline.extraction.sources.folder import ScanCounts, check_stop, parent_label
from pipeline.extraction.sources.selection import IMAGE, OTHER, Selection, kind_by_suffix
from pipeline.runtime import buckets
from pipeline.types import ImageRef

_CACHED_FOLDERS = 1024  # listed one after another, so that few are looked up again later


def prefix_refs(
    prefix: str, settings: SourceSettings, counts: ScanCounts, stop: threading.Event | None
) -> Iterator[ImageRef]:
    """Every image below the prefix that the settings select; hidden names and folders are those of keys with slashes.

    Memory: a page of the listing. Raises BucketFailed, and Interrupted once `stop` is set.
    """
    prefix = prefix.rstrip("/")
    selection = Selection(settings.include, settings.exclude)
    why_no_folder = lru_cache(_CACHED_FOLDERS)(selection.why_no_folder)
    outside = ImageOutside(root=shown(settings.root)) if settings.root is not None else None
    left_out = ""
    for found in buckets.list_objects(prefix):
        check_stop(stop)
        below = found.address[len(prefix) + 1 :]
        *folders, _ = below.split("/")
        paths = accumulate(folders, "{}/{}".format)  # of the folders that the key goes through, from the top
        closed = next(((folder, why) for folder in paths if (why := why_no_folder(folder))), None)
        if closed is not None:
            if closed[0] != left_out:
                left_out = closed[0]
                counts.leave_out(buckets.below(prefix, left_out), closed[1])
            continue
        kind = kind_by_suffix(below) or OTHER
        why = selection.why_no_file(below) or (None if kind == IMAGE else kind)
        if why is not None:
            counts.left_alone[why] += 1
            continue
        yield ImageRef(
            path=shown(found.address),
            file=found.address,
            name=parent_label(folders[-1], settings) if folders else None,
            rejected=None if settings.root is None or buckets.is_below(found.address, settings.root) else outside,
            state=object_state(found),
        )
