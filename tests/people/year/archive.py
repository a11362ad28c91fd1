"""The photos on disk: real files of coded faces, and what people do to them."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from coded_faces import Shown, pixels
from PIL import Image
from PIL.PngImagePlugin import PngInfo

ORIENTATION, LEFT_SIDE_UP = 0x0112, 6  # the EXIF tag; its value where the picture lies on its left side
_UPRIGHT_TO_STORED = Image.Transpose.ROTATE_90


@dataclass(frozen=True)
class Picture:
    """What is in a file. Equal pictures have equal bytes, and others have others."""

    faces: tuple[Shown, ...]  # from the largest to the smallest
    saved: int = 0  # how often it was saved again: other bytes, the same pixels
    on_its_side: bool = False  # the pixels lie, and a tag says so: other bytes, the same upright picture

    @cached_property
    def data(self) -> bytes:
        image, note, out = Image.fromarray(pixels(*self.faces)), PngInfo(), io.BytesIO()
        note.add_text("saved", str(self.saved))
        exif = Image.Exif()
        if self.on_its_side:
            image = image.transpose(_UPRIGHT_TO_STORED)
            exif[ORIENTATION] = LEFT_SIDE_UP
        image.save(out, "PNG", compress_level=1, pnginfo=note, exif=exif.tobytes() if self.on_its_side else b"")
        return out.getvalue()

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


class Archive:
    """A folder of photos. `photos` is what it holds, by the path below `root`."""

    DISK = "disk"  # a folder on which another disk is mounted

    def __init__(self, root: Path) -> None:
        self.root = root
        self.photos: dict[str, Picture] = {}
        self.away: dict[str, Picture] = {}  # on the disk that is not mounted
        self._unmounted = root.with_name("unmounted")
        root.mkdir()

    def in_order(self) -> list[str]:
        """The paths as a run meets them: by folder and name."""
        return sorted(self.photos, key=lambda path: [part.encode() for part in path.split("/")])

    def write(self, path: str, picture: Picture) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture.data)
        self.photos[path] = picture

    def delete(self, path: str) -> Picture:
        (self.root / path).unlink()
        return self.photos.pop(path)

    def move(self, old: str, new: str) -> None:
        """Also onto a photo that is there."""
        (self.root / new).parent.mkdir(parents=True, exist_ok=True)
        (self.root / old).replace(self.root / new)
        self.photos[new] = self.photos.pop(old)

    def rename_folder(self, old: str, new: str) -> None:
        (self.root / new).parent.mkdir(parents=True, exist_ok=True)
        (self.root / old).rename(self.root / new)
        self.photos = {_below(path, old, new): picture for path, picture in self.photos.items()}

    def rename_root(self, name: str) -> None:
        self.root = self.root.rename(self.root.with_name(name))

    def touch(self, path: str) -> None:
        os.utime(self.root / path)

    @contextmanager
    def taken_away(self, *, empty: bool) -> Iterator[None]:
        """All of it is on a disk that is not mounted; `empty`: a folder is left."""
        away = self.root.rename(self.root.with_name("away"))
        if empty:
            self.root.mkdir()
        yield
        if empty:
            self.root.rmdir()
        away.rename(self.root)

    def unmount(self) -> None:
        """An empty folder is left."""
        (self.root / self.DISK).rename(self._unmounted)
        (self.root / self.DISK).mkdir()
        self.away = {path: self.photos.pop(path) for path in self.within(self.DISK)}

    def mount(self) -> None:
        (self.root / self.DISK).rmdir()
        self._unmounted.rename(self.root / self.DISK)
        self.photos.update(self.away)
        self.away = {}

    def within(self, folder: str) -> list[str]:
        return [path for path in self.in_order() if path.startswith(f"{folder}/")]

    def folders(self) -> list[str]:
        return sorted({path.rpartition("/")[0] for path in self.photos})


def _below(path: str, old: str, new: str) -> str:
    return f"{new}/{path.removeprefix(f'{old}/')}" if path.startswith(f"{old}/") else path


# What an editor makes of a picture.


def saved_again(picture: Picture) -> Picture:
    return replace(picture, saved=picture.saved + 1)


def laid_on_its_side(picture: Picture) -> Picture:
    return replace(picture, on_its_side=not picture.on_its_side)


def turned(picture: Picture) -> Picture:
    """The faces are at other places, and of other sizes."""
    return replace(picture, faces=picture.faces[::-1])


def retouched(picture: Picture, variants: Iterable[int]) -> Picture:
    """The same faces, which look a little different."""
    faces = tuple(replace(face, variant=variant) for face, variant in zip(picture.faces, variants, strict=False))
    return replace(picture, faces=faces)


def cropped(picture: Picture) -> Picture:
    """Without the largest face."""
    return replace(picture, faces=picture.faces[1:])
