"""`facepipe regroup`."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.flags import REGROUP_FLAGS, place_options, settings_options, store_option
from pipeline.cli.output import confirm, emit, output_options, printable
from pipeline.cli.people import SHOWN, numbers, opened_people
from pipeline.cli.progress import LongWork
from pipeline.config import Settings
from pipeline.texts import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.jobs.people import People
    from pipeline.store import CorrectionAnswer, Regrouping


@click.command()
@store_option
@place_options
@click.option("--only", metavar="WHO", multiple=True, help="Only WHO and the people near WHO; repeatable.")
@click.option("--decode", is_flag=True, help="Read photos again whose rejected faces would pass now.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@settings_options(REGROUP_FLAGS)
@output_options
def regroup(
    store: Path,
    account: str | None,
    directory: str,
    only: tuple[str, ...],
    decode: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Re-cluster the stored faces, for example with another threshold.

    Decides all stored faces of a directory in their order, as a run would; or with --method average-link all at once,
    by the mean similarity of all pairs of two groups, which leaves people in fewer pieces. Corrections stay. Shows the
    changes and asks; `people undo` reverses it. Only decodes photos from which a new person's picture is cut. With
    --decode faces that a lower quality threshold admits take part, too: their photos are read again. Also works while
    a server is running.

    With --only decides only the faces of one person and of those similar enough to be the same, and changes nobody
    else. WHO is a name or id, as for `facepipe people`. The directory does not remember the flags of such a regroup.

    \b
    Examples:
      facepipe regroup --store ~/people --threshold 0.9 --dry-run
      facepipe regroup --store ~/people --threshold fmr:1e-5
      facepipe regroup --store ~/people --min-cpq 0.4 --decode
      facepipe regroup --store ~/people --method average-link --precision 0.995
      facepipe regroup --store ~/people --only "Grace Hopper" --method average-link --dry-run
    """
    opened = functools.partial(opened_people, store, account, directory, settings, command="regroup")
    with opened() as people:
        decoded = _decoded(people) if decode and not only else decode
        answer = people.regroup(decode=decoded, only=only, dry_run=dry_run or not yes)
    if not (dry_run or yes) and answer.regrouping is not None and _changes(answer.regrouping):
        for line in regroup_lines(answer):
            click.echo(printable(line), err=True)
        confirm("Do this?")
        with opened() as people:
            answer = people.regroup(decode=decoded, only=only)
    emit(asdict(answer), regroup_lines(answer), as_json)


def _decoded(people: People) -> pa.Table:
    with LongWork() as long:
        return people.decode_rejected(progress=long.progress, stop=long.stop)


def _changes(found: Regrouping) -> bool:
    return bool(found.moves or found.joins or found.parted or found.remembered)


def regroup_lines(answer: CorrectionAnswer) -> Iterator[str]:
    """What a regroup changes."""
    found = answer.regrouping
    assert found is not None
    of = "" if found.scope is None else f" of {counted(len(found.scope), 'person', 'people')}"
    new = counted(len(found.new), "new person", "new people")
    yield f"{counted(found.faces, 'face')}{of} {_by(found)}: " + (
        f"{len(found.moves)} move, {counted(len(found.joins), 'join')}, {new}, {len(found.gone)} go"
        if _changes(found)
        else "nothing changes"
    )

    def who(person_id: str | None) -> str:
        name = found.names.get(person_id or "")
        return "nobody" if person_id is None else f"{name} ({person_id})" if name else person_id

    if found.remembered is not None:
        yield f"keep   {found.remembered}, for later runs, posts and regroups of the directory"
    for first, *others in found.joins:
        yield f"join   {who(first)} with {', '.join(map(who, others))}"
    for person_id in found.parted:
        yield f"part   {who(person_id)} from whom an earlier regroup joined it with"
    moves: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for move in found.moves:
        moves[move.before, move.after].append(move.face_id)
    for (before, after), faces in moves.items():
        yield f"move   {numbers(faces)} of {who(before)} to {'the new ' * (after in found.new)}{who(after)}"
    yield from (f"gone   {who(person_id)}" for person_id in found.gone)
    for pair in found.kept_apart:
        one, other, why = who(pair.person_id), who(pair.other_id), _REASONS[pair.reason]
        if pair.faces:
            yield f"apart  {numbers(pair.faces)} of {one} look like {other}'s, and stay: {why}"
        else:
            yield f"apart  {one} and {other} stay two people: {why}"
    yield from (f"clash  {each.detail}" for each in found.contradictions[:SHOWN])
    if len(found.contradictions) > SHOWN:
        yield f"clash  {len(found.contradictions) - SHOWN} more"
    if found.without_picture:
        why = "the photos of what would be a new person can't be read, or their person's other faces have no vector"
        yield f"stay   {numbers(found.without_picture)}: {why}"
    stay = {face.face_id for face in found.not_decoded}
    if found.admitted and not found.decoded:
        yield f"admit  {numbers(found.admitted)} would pass now, and stay rejected: --decode reads their photos again"
    elif taken := [face_id for face_id in found.admitted if face_id not in stay]:
        yield f"admit  {numbers(taken)} pass now, and were decided by their photos"
    yield from (f"stay   face {f.face_id}, rejected: {f.path}: {f.reason}" for f in found.not_decoded[:SHOWN])
    if len(found.not_decoded) > SHOWN:
        yield f"stay   {len(found.not_decoded) - SHOWN} more"
    if answer.correction_id is not None:
        yield f"done (correction {answer.correction_id}); `people undo` takes it back"


def _by(found: Regrouping) -> str:
    if found.cut is None:
        return f"at T = {found.threshold:g}"
    if found.precision is None:
        return f"by average link, cut at T = {found.cut:.4g}"
    from pipeline.matching.calibration import CHECKED_PEOPLE

    far = ", extrapolated to so many: expect less" if (found.people or 0) > CHECKED_PEOPLE else ""
    return (
        f"by average link, cut at T = {found.cut:.4g} (precision {found.precision:g} among {found.people:,} people,"
        f" measured on news photos{far}; yours may be more alike)"
    )


_REASONS = {
    "name": "their names differ",
    "external id": "their external ids differ",
    "stated": "a correction says so",
    "photo": "they are on a photo together",
    "hidden": "one is hidden",
}
