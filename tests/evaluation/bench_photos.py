"""A folder of photos as the speed benchmarks expect it, made of two portraits."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageOps


def make_photos(folder: Path, hopper: Path, astronaut: Path) -> Path:
    """`folder` with two portraits of 250 x 250 and a group photo of both people."""
    faces = []
    for path in (hopper, astronaut):
        with Image.open(path) as image:
            faces.append(ImageOps.fit(image.convert("RGB"), (250, 250), centering=(0.4, 0.1)))
        person = folder / "lfw-view1" / "images" / path.stem
        person.mkdir(parents=True)
        faces[-1].save(person / f"{path.stem}_0001.jpg", quality=95)
    group = Image.new("RGB", (520, 260), "grey")
    group.paste(faces[0], (0, 5))
    group.paste(faces[1], (260, 5))
    (folder / "groups-with-boxes").mkdir()
    group.save(folder / "groups-with-boxes" / "both.jpg", quality=95)
    return folder
