"""`facepipe search`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.flags import (
    PATH,
    SEARCH_FLAGS,
    account_option,
    directory_option,
    settings_options,
    store_option,
)
from pipeline.cli.output import emit, end_with, output_options
from pipeline.config import Settings
from pipeline.errors import ImageRejected

if TYPE_CHECKING:
    from pipeline.store.records import Candidate, FaceAnswer


@click.command()
@click.argument("image", type=PATH)
@store_option
@click.option(
    "--top", type=click.IntRange(0, 1000), default=5, show_default=True, metavar="N", help="Most similar identities."
)
@account_option
@directory_option
@settings_options(SEARCH_FLAGS)
@output_options
def search(
    image: Path, store: Path, top: int, account: str | None, directory: str, as_json: bool, settings: Settings
) -> None:
    """Find out who is in IMAGE. Changes nothing.

    For each face, the largest first, prints the identity it matches (a score of 1 or more) and the most similar
    ones.

    \b
    Examples:
      facepipe search party.jpg --store ~/people
      facepipe search party.jpg --store ~/people --top 1 --json
    """
    from pipeline.jobs.search import search as search_store

    try:
        faces = search_store(image, store, settings, account, directory, top)
    except ImageRejected as error:
        end_with(error, {"image": str(image)}, (), as_json, subject=str(image))
    emit({"image": str(image), "faces": [face.as_dict() for face in faces]}, _lines(faces), as_json)


def _lines(faces: Sequence[FaceAnswer]) -> Iterator[str]:
    if not faces:
        yield "no face found"
    for number, face in enumerate(faces, 1):
        x1, y1, x2, y2 = (round(v) for v in face.box)
        yield f"face {number} at {x1},{y1} to {x2},{y2}: {_who(face.identity) if face.identity else 'matches nobody'}"
        yield from (f"    {_who(candidate)}" for candidate in face.similar)


def _who(candidate: Candidate) -> str:
    name = candidate.name or candidate.external_id or "(no name)"
    return f"{name}  score {candidate.similarity_score:.3f}  {candidate.person_id}"
