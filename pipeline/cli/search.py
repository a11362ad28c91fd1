"""`facepipe search`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.flags import PATH, SEARCH_FLAGS, place_options, settings_options, store_option
from pipeline.cli.output import emit, end_with, output_options
from pipeline.cli.progress import open_progress
from pipeline.config import Settings
from pipeline.errors import ImageRejected
from pipeline.texts import counted

if TYPE_CHECKING:
    from pipeline.store import Candidate, FaceAnswer


@click.command()
@click.argument("image", type=PATH)
@store_option
@click.option(
    "--top", type=click.IntRange(0, 1000), default=5, show_default=True, metavar="N", help="Most similar identities."
)
@place_options
@settings_options(SEARCH_FLAGS)
@output_options
def search(
    image: Path, store: Path, top: int, account: str | None, directory: str, as_json: bool, settings: Settings
) -> None:
    """Recognise the people in IMAGE. Changes nothing.

    For each face, the largest first, prints the identity that it matches and the most similar others, each with the
    photo of its reference face. Strong and likely ones are matches, weak ones are not; a strong one would still match
    at a hundredth of the false match rate, according to the store's calibration.

    \b
    Examples:
      facepipe search party.jpg --store ~/people
      facepipe search party.jpg --store ~/people --top 1 --json
    """
    from pipeline.extraction.images.files import read_file

    try:
        data = read_file(image, settings.decode.max_bytes)
        with closing(open_progress()) as progress:
            progress.start("loading the models", None)
            from pipeline.jobs.people import People
            from pipeline.jobs.store import open_store

            with open_store(store, settings, command="search", reading=True) as opened:
                faces = People(opened, account, directory).recognise(data, top)
    except ImageRejected as error:
        end_with(error, {"image": str(image)}, (), as_json, subject=str(image))
    emit({"image": str(image), "faces": [face.as_dict() for face in faces]}, _lines(image, faces), as_json)


def _lines(image: Path, faces: Sequence[FaceAnswer]) -> Iterator[str]:
    yield f"{image}: {counted(len(faces), 'face') if faces else 'no face'}"
    for number, face in enumerate(faces, 1):
        x1, y1, x2, y2 = (round(v) for v in face.box)
        yield f"face {number} at {x1},{y1} to {x2},{y2}: {_who(face.identity) if face.identity else 'matches nobody'}"
        matched = face.identity and face.identity.person_id
        yield from (f"    {_who(candidate)}" for candidate in face.similar if candidate.person_id != matched)


def _who(candidate: Candidate) -> str:
    name, photo = candidate.name or candidate.external_id or "(no name)", candidate.photo or "(posted)"
    return f"{name}  {candidate.strength} {candidate.similarity_score:.3f}  {photo}  {candidate.person_id}"
