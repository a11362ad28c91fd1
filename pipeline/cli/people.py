"""`facepipe people`: who is in a directory, which photos show them, and corrections."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pipeline.cli.flags import DRAW_FLAGS, PATH, place_options, settings_options, store_option
from pipeline.cli.groups import CommandGroup
from pipeline.cli.output import confirm, csv_lines, emit, json_list, output_options, printable, write_out
from pipeline.cli.run import EXIT_REJECTED_INPUTS
from pipeline.config import Settings
from pipeline.errors import UsageError
from pipeline.texts import counted

if TYPE_CHECKING:
    from pipeline.jobs.people import LoggedCorrection, People, PersonRow, TwiceOnPhoto, UnassignedFace
    from pipeline.store import CorrectionAnswer, Suggestion

Opener = Callable[[], Any]
T = TypeVar("T")
SHOWN = 20  # faces or persons


@click.group(cls=CommandGroup)
def people() -> None:
    """List the people of a store, and correct who is who.

    WHO is a person's name or id, or the first letters of one; if several people fit, they are listed and nothing is
    done. FACE is a number that `people photos` shows. Also works while a server is running; its answers reflect a
    correction immediately, and later runs respect it.
    """


def _options(
    *, reading: bool = False, table: bool = False, flags: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the options of all these commands; the function gets what opens the people as its first argument."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(store: Path, account: str | None, directory: str, settings: Settings, **options: Any) -> None:
            function(functools.partial(opened_people, store, account, directory, settings, reading), **options)

        made: Callable[..., None] = command
        if table:
            made = click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with a line of column names.")(made)
        made = settings_options((*flags, "security.master_key_file"))(output_options(made))
        return store_option(place_options(made))

    return decorate


@contextmanager
def opened_people(
    store: Path, account: str | None, directory: str, settings: Settings, reading: bool = False, command: str = "people"
) -> Iterator[People]:
    """The people of a directory, for the block; the store's pictures can be written unless `reading`."""
    from pipeline.jobs.people import People
    from pipeline.jobs.store import open_store

    with open_store(store, settings, command=command, reading=reading) as opened:
        if not reading:
            opened.unlock()
        yield People(opened, account, directory)


def _emit_rows(
    key: str,
    rows: Iterable[T],
    row_of: Callable[[T], Mapping[str, Any]],
    line_of: Callable[[T], str],
    as_json: bool,
    as_csv: bool,
) -> None:
    """Prints the rows as they come."""
    if as_csv and as_json:
        raise UsageError(message="Give --csv or --json, not both.")
    if as_csv:
        write_out(csv_lines(map(row_of, rows)))
    elif as_json:
        write_out(json_list(key, map(row_of, rows)))
    else:
        write_out(f"{printable(line_of(row))}\n" for row in rows)


@people.command("list")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="List at most N people.")
@click.option("--after", metavar="WHO", help="List those after WHO, such as the last one of the previous page.")
@_options(reading=True, table=True)
def list_people(opened: Opener, limit: int | None, after: str | None, as_json: bool, as_csv: bool) -> None:
    """List the people, the oldest first.

    The age of merged people is that of their root. The order never changes, so a script can read page after page: each
    begins after the last person_id of the previous page, and the last page has fewer than N people.

    \b
    Examples:
      facepipe people list --store ~/people
      facepipe people list --store ~/people --csv > names.csv
      facepipe people list --store ~/people --limit 100 --after 3f2a --json
    """
    from pipeline.jobs.people import AT_ONCE

    with ExitStack() as stack:
        rows = stack.enter_context(opened()).each(limit=limit, after=after)
        first = [*islice(rows, AT_ONCE)]
        if len(first) < AT_ONCE:
            stack.close()  # whoever reads the lines may want to use the store
        _emit_rows("people", chain(first, rows), vars, _line, as_json, as_csv)


@people.command()
@click.argument("who")
@_options(reading=True)
def show(opened: Opener, who: str, as_json: bool) -> None:
    """Show the person WHO.

    \b
    Example:
      facepipe people show "Grace Hopper" --store ~/people
    """
    with opened() as directory:
        row = directory.show(who)
    emit(asdict(row), [f"{name:<12}{'' if value is None else value}" for name, value in asdict(row).items()], as_json)


@people.command()
@click.argument("who")
@_options(reading=True, table=True)
def photos(opened: Opener, who: str, as_json: bool, as_csv: bool) -> None:
    """List the faces of WHO, by photo.

    \b
    Example:
      facepipe people photos "Grace Hopper" --store ~/people
    """
    with opened() as directory:
        faces = directory.photos(who)
    _emit_rows("faces", faces, dict, _face_line, as_json, as_csv)


@people.command()
@click.argument("who", nargs=-1, required=True)
@_options(reading=True, table=True)
def together(opened: Opener, who: tuple[str, ...], as_json: bool, as_csv: bool) -> None:
    """List the photos that show all of WHO.

    \b
    Example:
      facepipe people together Grace Eileen --store ~/people
    """
    with opened() as directory:
        paths = directory.together(*who)
    _emit_rows("photos", paths, lambda path: {"path": path}, str, as_json, as_csv)


@people.command()
@click.option("--all", "nobodys", is_flag=True, help="Also those that you said are nobody's.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="List at most N faces.")
@click.option(
    "--after",
    type=click.IntRange(min=1, max=2**63 - 1),
    metavar="FACE",
    help="List those behind FACE, such as the last one of the previous page.",
)
@_options(reading=True, table=True)
def unassigned(
    opened: Opener, nobodys: bool, limit: int | None, after: int | None, as_json: bool, as_csv: bool
) -> None:
    """List the faces that are no person's, the largest first.

    With each its photo, its size (the longer side of its box, in pixels) and why it has no person. `people move FACE
    WHO` assigns it to a person; `people move FACE --nobody` says that it is nobody's, or no face. The order never
    changes, so a script can read page after page: the last page has fewer than N faces.

    \b
    Examples:
      facepipe people unassigned --store ~/people
      facepipe people unassigned --store ~/people --limit 100 --after 4711 --json
    """
    with opened() as directory:
        faces = directory.unassigned(limit=limit, after=after, nobodys=nobodys)
    _emit_rows("faces", faces, vars, _unassigned_line, as_json, as_csv)


@people.command()
@_options(reading=True, table=True)
def twice(opened: Opener, as_json: bool, as_csv: bool) -> None:
    """List who is twice on a photo: several of its faces are one person's.

    Most are wrong matches: `people move FACE WHO` or `people split WHO FACE` corrects them. If a collage or a mirror
    shows somebody twice, `people allow-twice PHOTO` removes the photo from the list. Those of whom you said so come
    last. Boxes that overlap by half are one face.

    \b
    Example:
      facepipe people twice --store ~/people
    """
    with opened() as directory:
        found = directory.twice()
    _emit_rows("twice", found, vars, _twice_line, as_json, as_csv)


@people.command("allow-twice")
@click.argument("photo")
@click.option("--no", "back", is_flag=True, help="Take that back.")
@_options()
def allow_twice(opened: Opener, photo: str, back: bool, as_json: bool) -> None:
    """Allow that people are twice on PHOTO, a path or a number as `people twice` shows them.

    For collages and mirrors. Runs, posts, regroups and labels then decide this photo, and all with the same bytes,
    as if nothing forbade it.

    \b
    Examples:
      facepipe people allow-twice ~/photos/collage.jpg --store ~/people
      facepipe people allow-twice ~/photos/collage.jpg --no --store ~/people
    """
    with opened() as directory:
        _report(directory.allow_twice(photo, allow=not back), as_json)


@people.command()
@click.argument("who", required=False)
@click.option("--limit", type=click.IntRange(min=1), default=40, show_default=True, help="List at most so many pairs.")
@_options(reading=True)
def suggest(opened: Opener, who: str | None, limit: int, as_json: bool) -> None:
    """List pairs of people who may be one, the likeliest first; with WHO, who else WHO may be.

    Of one name or alike in several faces of each, but never on one photo, and not of two names. `people merge` makes
    them one; `people not-same` says that they are two, and they are not listed again. Review in the web UI and the
    reports show the same pairs. In a large directory it looks at the people on most photos.

    \b
    Examples:
      facepipe people suggest --store ~/people
      facepipe people suggest "Grace Hopper" --limit 5 --store ~/people
    """
    with opened() as directory:
        found = directory.suggest(who)
    shown, left = found.pairs[:limit], max(0, len(found.pairs) - limit)
    looked = "" if found.looked_at == found.people else f", among the {found.looked_at:,} people on most photos"
    report = {"left": left, "looked_at": found.looked_at, "people": found.people, "wider": found.wider}
    lines = [*map(_suggested_line, shown), f"{left:,} more{looked}"]
    emit({"pairs": [_suggested(pair) for pair in shown], **report}, lines, as_json)


@people.command()
@click.argument("who", required=False)
@click.argument("new_name", metavar="NAME", required=False)
@click.option("--from", "file", type=PATH, metavar="CSV", help="Take the columns person_id and name of this file.")
@_options()
def name(opened: Opener, who: str | None, new_name: str | None, file: Path | None, as_json: bool) -> None:
    """Name WHO; an empty NAME removes the name.

    With --from each row of a CSV file, as `people list --csv` writes it, names one person. Rows without a name
    are skipped. Rows that fail are listed, the others are done, and the exit code is 1.

    \b
    Examples:
      facepipe people name 3f2a "Grace Hopper" --store ~/people
      facepipe people name --from names.csv --store ~/people
    """
    if (file is None) == (who is None or new_name is None) or (file is not None and who is not None):
        raise UsageError(message="Give WHO and NAME, or --from and nothing else.")
    if file is None:
        with opened() as directory:
            _report(directory.name(str(who), str(new_name)), as_json)
        return
    from pipeline.jobs.people import read_names

    rows = read_names(file)
    with opened() as directory:
        done, left = directory.name_all(rows)
    report = {"named": done, "left": [{"person_id": one, "name": said, "reason": why} for one, said, why in left]}
    emit(report, [f"{done} named", *(f"left: {one}, {said}: {why}" for one, said, why in left)], as_json)
    if left:
        raise click.exceptions.Exit(EXIT_REJECTED_INPUTS)


@people.command()
@click.argument("who", nargs=-1, required=True)
@click.option("--anyway", is_flag=True, help="Even if you said that they are not the same.")
@_options()
def merge(opened: Opener, who: tuple[str, ...], anyway: bool, as_json: bool) -> None:
    """Make all of WHO one person. All their ids stay valid.

    \b
    Example:
      facepipe people merge "Grace Hopper" 91c0 --store ~/people
    """
    with opened() as directory:
        _report(directory.merge(*who, anyway=anyway), as_json)


@people.command()
@click.argument("who")
@_options()
def unmerge(opened: Opener, who: str, as_json: bool) -> None:
    """Undo all merges into WHO.

    \b
    Example:
      facepipe people unmerge "Grace Hopper" --store ~/people
    """
    with opened() as directory:
        _report(directory.unmerge(who), as_json)


@people.command()
@click.argument("who")
@click.argument("faces", nargs=-1, required=True, type=int)
@_options()
def split(opened: Opener, who: str, faces: tuple[int, ...], as_json: bool) -> None:
    """Make some FACES of WHO a new person.

    \b
    Example:
      facepipe people split "Grace Hopper" 17 23 --store ~/people
    """
    with opened() as directory:
        _report(directory.split(who, faces), as_json)


@people.command()
@click.argument("face", type=int)
@click.argument("who", required=False)
@click.option("--nobody", is_flag=True, help="It is nobody's face in the store.")
@_options()
def move(opened: Opener, face: int, who: str | None, nobody: bool, as_json: bool) -> None:
    """Say that FACE is WHO.

    \b
    Examples:
      facepipe people move 17 "Eileen Collins" --store ~/people
      facepipe people move 17 --nobody --store ~/people
    """
    if (who is None) != nobody:
        raise UsageError(message="Give WHO or --nobody.")
    with opened() as directory:
        _report(directory.move(face, who), as_json)


def _box(_context: click.Context, _option: click.Parameter, text: str) -> tuple[float, float, float, float]:
    try:
        x1, y1, x2, y2 = map(float, text.split(","))
    except ValueError:
        raise click.BadParameter("give four numbers: X1,Y1,X2,Y2") from None
    return x1, y1, x2, y2


@people.command("add-face")
@click.argument("photo")
@click.argument("who", required=False)
@click.option(
    "--box",
    required=True,
    metavar="X1,Y1,X2,Y2",
    callback=_box,
    help="Where it is: the left, upper, right and lower edge, in pixels of the upright photo.",
)
@click.option("--new", "new_name", metavar="NAME", help="It is somebody new, of this name.")
@_options(flags=DRAW_FLAGS)
def add_face(
    opened: Opener, photo: str, who: str | None, box: tuple[float, ...], new_name: str | None, as_json: bool
) -> None:
    """Say that WHO has a face on PHOTO that the detector missed.

    The detector looks there again, closer. If it finds a face of sufficient quality, the face is recognised from now
    on. Else it becomes a tag: the photo shows WHO, and nobody is recognised by it. `people undo` removes it.

    \b
    Examples:
      facepipe people add-face ~/photos/2009/7.jpg "Grace Hopper" --box 410,96,470,172 --store ~/people
      facepipe people add-face ~/photos/2009/7.jpg --new "Eileen Collins" --box 80,90,131,150 --store ~/people
    """
    if (who is None) == (not new_name):
        raise UsageError(message="Give WHO or --new NAME.")
    with opened() as directory:
        _report(directory.add_face(photo, box, who, name=new_name), as_json)


@people.command("not-same")
@click.argument("who")
@click.argument("other")
@_options()
def not_same(opened: Opener, who: str, other: str, as_json: bool) -> None:
    """Say that WHO and OTHER are two people.

    \b
    Example:
      facepipe people not-same Grace Eileen --store ~/people
    """
    with opened() as directory:
        _report(directory.not_same(who, other), as_json)


@people.command()
@click.argument("who")
@_options()
def hide(opened: Opener, who: str, as_json: bool) -> None:
    """Mark WHO as hidden (`ignore` in a record of the server).

    \b
    Example:
      facepipe people hide 91c0 --store ~/people
    """
    with opened() as directory:
        _report(directory.hide(who), as_json)


@people.command()
@click.argument("who")
@_options()
def unhide(opened: Opener, who: str, as_json: bool) -> None:
    """Mark WHO as not hidden.

    \b
    Example:
      facepipe people unhide 91c0 --store ~/people
    """
    with opened() as directory:
        _report(directory.unhide(who), as_json)


@people.command()
@click.argument("who")
@click.option("--photos", is_flag=True, help="Also delete photos that show others, too, with all faces on them.")
@click.option("--no-trace", is_flag=True, help="Keep no digests: the next run may import the faces again.")
@click.option("--receipt", type=PATH, metavar="FILE", help="A new file outside the store: a receipt of what is erased.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@_options()
def forget(
    opened: Opener, who: str, photos: bool, no_trace: bool, receipt: Path | None, yes: bool, as_json: bool
) -> None:
    """Delete WHO with all faces, vectors and pictures. This cannot be undone.

    The photo files stay. No later run imports these faces again, nor a photo that showed nobody else: the store keeps
    keyed digests of paths and hashes, unless --no-trace is given. Photos that show others keep their rows and are
    listed; --photos deletes them, too. `facepipe erase` tells what is still in the store's files; once that is erased,
    `facepipe erase receipt FILE` completes and signs the receipt.

    \b
    Examples:
      facepipe people forget "Grace Hopper" --store ~/people
      facepipe people forget "Grace Hopper" --photos --no-trace --store ~/people
      facepipe people forget "Grace Hopper" --receipt grace.json --store ~/people
    """
    with opened() as directory:
        row = directory.show(who)
    if not yes:
        confirm(f"Forget {row.name or row.person_id}, with {counted(row.faces, 'face')}?")
    with opened() as directory:
        answer = directory.forget(row.person_id, photos=photos, no_trace=no_trace, receipt=receipt)
    lines = [*_lines(answer, ""), *(f"also shows others: {path}" for path in answer.kept_photos)]
    if answer.kept_posts:
        lines.append(f"{counted(answer.kept_posts, 'posted photo')} of others, too: the hashes stay")
    if no_trace:
        lines.append("The next run may import these faces again: nothing was kept to know them by.")
    if receipt is not None:
        lines.append(f"receipt {receipt}: pending, until `facepipe erase receipt` completes it")
    emit(asdict(answer), lines, as_json)


@people.command()
@click.option(
    "--limit",
    "--count",
    "limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="List at most N changes.",
)
@click.option(
    "--after",
    "--before",
    "after",
    type=click.IntRange(min=1),
    default=2**63 - 1,
    metavar="NUMBER",
    help="List those older than change NUMBER, such as the last one of the previous page.",
)
@_options(reading=True, table=True)
def log(opened: Opener, limit: int, after: int, as_json: bool, as_csv: bool) -> None:
    """List the last changes of people: number, time, origin, kind, and the people involved.

    The origin is `user` for commands and the web UI, `api` for requests to the server, `label` for changed labels, and
    `run` for changed photos. `people undo` takes the number; deletions are listed, but cannot be undone.

    \b
    Example:
      facepipe people log --store ~/people
    """
    with opened() as directory:
        rows = directory.log(limit, after)
    _emit_rows("corrections", rows, asdict, _log_line, as_json, as_csv)


@people.command()
@click.argument("correction", type=click.IntRange(min=1), required=False)
@click.option(
    "--origin",
    type=click.Choice(["user", "api", "label", "run"]),
    help="Undo the last change made by users (the default), requests to the server, changed labels, or runs.",
)
@click.option("--yes", is_flag=True, help="Don't ask.")
@_options()
def undo(opened: Opener, correction: int | None, origin: str | None, yes: bool, as_json: bool) -> None:
    """Undo CORRECTION, by its number, or the last one that is not undone.

    A correction can be undone until something that it changed is changed again. An undo is a correction, too: undoing
    it makes the first one again. Shows what would be undone and asks, unless --yes or --json is given: `forget` also
    deletes the corrections that involve that person, so the last one may be older than you expect.

    \b
    Examples:
      facepipe people undo --store ~/people
      facepipe people undo 17 --store ~/people
      facepipe people undo --origin api --store ~/people
    """
    if correction is not None and origin is not None:
        raise UsageError(message="Give CORRECTION or --origin, not both.")
    origin = origin or "user"
    if not (yes or as_json):
        with opened() as directory:
            shown = directory.undo(correction, origin=origin, dry_run=True)
        for line in _lines(shown, "to undo: "):
            click.echo(printable(line), err=True)
        confirm("Undo this?")
        correction = shown.correction_id
    with opened() as directory:
        _report(directory.undo(correction, origin=origin), as_json, "undone: ")


def _line(row: PersonRow) -> str:
    notes = [f"{row.merged} merged"] * bool(row.merged) + ["hidden"] * row.hidden
    counts = counted(row.photos, "photo"), counted(row.faces, "face")
    return "  ".join([row.person_id, row.name or "(no name)", *counts, *notes])


def _log_line(row: LoggedCorrection) -> str:
    kind = row.kind.replace("_", "-") + (f" {row.undoes}" if row.undoes is not None else "")
    people = [row.names[person_id] or person_id for person_id in row.person_ids[:SHOWN]]
    people += [f"and {len(row.person_ids) - SHOWN} more"] * (len(row.person_ids) > SHOWN)
    notes = [counted(row.faces, "face")] * (row.faces > 0) + ["undone"] * row.undone
    notes += [f"{row.gone} deleted"] * (row.gone > 0)
    notes += ["although a correction said otherwise"] * row.overrode
    parts = [f"{row.correction_id:>6}", f"{row.made_at:%F %T}", row.origin, kind, ", ".join(people), *notes]
    return "  ".join(filter(None, parts))


def _face_line(face: Mapping[str, Any]) -> str:
    taken = [] if face["taken_at"] is None else [f"taken {face['taken_at']}"]
    notes = [note for note in ("reference", "stated") if face[note]]
    return "  ".join([str(face["face_id"]), face["path"] or "(posted)", face["outcome"], *notes, *taken])


def _unassigned_line(face: UnassignedFace) -> str:
    return "  ".join([str(face.face_id), face.path, f"{face.size_px:.0f} px", face.reason])


def _suggested(pair: Suggestion) -> dict[str, Any]:
    return {
        "one": pair.one,
        "other": pair.other,
        "one_name": pair.names[0],
        "other_name": pair.names[1],
        "score": round(pair.score, 6),
        "reasons": pair.reasons,
    }


def _suggested_line(pair: Suggestion) -> str:
    two = (
        f"{person_id}  {name or '(no name)'}"
        for person_id, name in zip((pair.one, pair.other), pair.names, strict=True)
    )
    return "  ".join([f"{pair.score:.3f}", *two, pair.reasons])


def _twice_line(entry: TwiceOnPhoto) -> str:
    who = entry.name or entry.person_id
    notes = [entry.said] if entry.said else []
    return "  ".join([str(entry.media_id), entry.path, who, numbers(entry.faces), *notes])


def _report(answer: CorrectionAnswer, as_json: bool, said: str = "") -> None:
    emit(asdict(answer), _lines(answer, said), as_json)


def _lines(answer: CorrectionAnswer, said: str) -> Iterator[str]:
    if answer.correction_id is None and not answer.gone:
        yield "nothing changed"
    else:
        made = (
            "" if answer.correction_id is None else f" (correction {answer.correction_id}, {answer.made_at:%F %T} UTC)"
        )
        yield f"{said}{answer.kind.replace('_', '-')}{made}"
    if answer.undone_by is not None:
        yield f"`people undo {answer.undone_by}` makes it again"
    if answer.faces:
        yield numbers(answer.faces)
    if answer.tag is not None:
        yield f"a tag, by which nobody is recognised: {answer.tag}"
    for word, persons in (("person", answer.persons), ("gone  ", answer.gone)):
        yield from (f"{word} {person_id}  {answer.names.get(person_id, '')}".rstrip() for person_id in persons[:SHOWN])
        if len(persons) > SHOWN:
            yield f"{word} and {len(persons) - SHOWN} more"
    for fact in answer.replaced:
        parts = (fact.kind, fact.face_id, fact.person_id, fact.other_id)
        stated = " ".join(str(part) for part in parts if part is not None)
        yield f"this replaces what was stated before: {stated} (correction {fact.correction_id})"


def numbers(faces: Sequence[int]) -> str:
    """Face numbers in a line, the first few."""
    more = f" and {len(faces) - SHOWN} more" if len(faces) > SHOWN else ""
    return f"face{'s' * (len(faces) > 1)} {', '.join(map(str, faces[:SHOWN]))}{more}"
