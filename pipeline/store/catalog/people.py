"""People of a directory, and their photos, for listings. A merged set is one person."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from pipeline.errors import FaceUnknown
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.corrections import TWICE_ALLOWED, regrouped
from pipeline.store.catalog.directories import directory_id
from pipeline.store.schema import QUALITY, arrow_schema, embedded, same_face
from pipeline.texts import is_unicode, nfc
from pipeline.types import NO_FACE, OK

_MANY: Final = 16  # reading everybody is as fast as searching for more people
_NAMESAKES: Final = 16
EVERYBODY: Final = (-1, 2**53)  # (after, limit): the first `limit` roots with seq > `after`
# Faces of `wanted`; $1: generation.
_FACES: Final = f"""
    SELECT w.face_id, w.place, f.person_id::VARCHAR AS person_id, f.outcome, d.similarity_score, {QUALITY} AS quality,
        d.x1, d.y1, d.x2, d.y2, m.media_id, m.path, m.width, m.height, r.image_guid,
        r.face_id IS NOT NULL AS reference,
        w.face_id IN (SELECT face_id FROM core.facts WHERE kind = 'is') AS stated, m.taken_at
    FROM wanted w JOIN core.faces f ON f.face_id = w.face_id JOIN core.media m ON m.media_id = f.media_id
    JOIN core.detections d ON d.face_id = f.face_id AND d.generation = $1
    LEFT JOIN core.reference_faces r ON r.face_id = f.face_id AND r.generation = $1
"""
ADDED, SCORE, TAKEN = "added", "score", "taken"  # orders of a person's faces
# Sorting keys of faces `d` on photos `m`, as DOUBLE.
_PLACES: Final = {
    ADDED: "0::DOUBLE",
    SCORE: "coalesce(d.similarity_score, 1e9)",
    TAKEN: "coalesce(epoch(m.taken_at), 1e12)",
}
_SIZE: Final = "greatest(d.x2 - d.x1, d.y2 - d.y1)::DOUBLE"
# Of photos of runs in directory $3 of account $2.
_FACES_OF_PHOTOS: Final = """
    FROM core.faces f JOIN core.media m ON m.media_id = f.media_id
    JOIN core.detections d ON d.face_id = f.face_id AND d.generation = $1
    WHERE m.account_id = $2 AND m.directory = $3 AND m.path IS NOT NULL AND f.outcome <> 'removed'
"""
_UNASSIGNED: Final = f"""
    said AS MATERIALIZED (
        SELECT m.sha256, f.ordinal FROM core.facts t JOIN core.faces f ON f.face_id = t.face_id
        JOIN core.media m ON m.media_id = f.media_id
        WHERE t.kind = 'nobody' AND m.account_id = $2 AND m.directory = $3
    ), unassigned AS MATERIALIZED (
        SELECT f.face_id, {_SIZE} AS size, d.rejection_reasons,
            CASE WHEN (m.sha256, f.ordinal) IN (FROM said) THEN 'nobody'
                WHEN f.outcome = 'rejected' THEN 'rejected'
                WHEN f.ordinal > 0 AND (m.name IS NOT NULL OR m.external_id IS NOT NULL) THEN 'unmatched'
                ELSE 'deleted' END AS why
        {_FACES_OF_PHOTOS} AND f.person_id IS NULL
"""
_PLACE_OF_FACE: Final = f"SELECT -{_SIZE} {_FACES_OF_PHOTOS} AND f.face_id = $4"  # among unassigned faces
# Of `twice_on_photos`.
_TWICE: Final = pa.schema(
    [
        pa.field("entry", pa.int64()),
        pa.field("said", pa.string()),
        *arrow_schema("media", ("media_id", "path", "sha256")),
        *arrow_schema("persons", ("person_id", "name")),
        pa.field("face_id", pa.int64()),
        pa.field("record_id", pa.string()),
        *arrow_schema("detections", ("x1", "y1", "x2", "y2")),
        pa.field("pixels", pa.int64()),
    ]
)
# Of `people` with `counted`: a further table, columns and joins.
_COUNTED: Final = (
    """, shown AS MATERIALIZED (
        SELECT r.person_id, r.root_person_id, m.path
        FROM records r JOIN core.faces f USING (person_id) JOIN core.media m USING (media_id)
    )""",
    """, coalesce(r.ignored, false) AS hidden, r.cover, r.occurrence, coalesce(f.faces, 0) AS faces,
        coalesce(s.photos, 0) AS photos, r.added_at""",
    """LEFT JOIN (SELECT person_id, count(*) AS faces FROM shown GROUP BY ALL) f USING (person_id)
    LEFT JOIN (SELECT root_person_id, count(DISTINCT path) AS photos FROM shown GROUP BY ALL) s USING (root_person_id)
    """,
)


def people(
    catalog: Catalog,
    account_id: int,
    directory: str,
    who: Sequence[str] | None = None,
    page: tuple[int, int] = EVERYBODY,
    *,
    counted: bool = True,
) -> pa.Table:
    """person_id, root_person_id, name, external_id, seq: the records on a page, merged sets ordered by their root's
    age. With `counted` also hidden, occurrence, faces (the record's own), photos (of its merged set), added_at.

    `who` selects merged sets with a record that matches by id prefix, name prefix (any case) or external id.
    """
    records, params = _records(who, page)
    shown, columns, joins = _COUNTED if counted else ("", "", "")
    return catalog.read(
        f"WITH RECURSIVE {records}{shown} SELECT r.person_id::VARCHAR AS person_id, r.root_person_id, r.name,"
        f" r.external_id, r.seq{columns} FROM records r {joins} ORDER BY r.root_seq, r.seq",
        [directory_id(catalog, account_id, directory), *params],
    )


def _records(who: Sequence[str] | None, page: tuple[int, int]) -> tuple[str, Sequence[str | int]]:
    """The expression `records` for WITH RECURSIVE, and its parameters after $1: the persons of directory $1 with
    root_person_id and root_seq. Only follows merged sets that match or are on the page."""
    if who is None or len(who) > _MANY:
        return _merged_sets("parent_id IS NULL AND seq > $2 ORDER BY seq LIMIT $3"), page
    # SQL does not fold case like Unicode: the caller filters names with non-ASCII characters.
    tests, params = ["NOT regexp_full_match(name, '[ -~]*')"], list[str]()
    for one in filter(is_unicode, who):  # others match nobody
        id_start, external, name_start = (f"${len(params) + 2 + place}" for place in range(3))
        params += [one.casefold(), one, nfc(one).casefold()]
        tests.append(f"starts_with(person_id::VARCHAR, {id_start}) OR external_id = {external}")
        tests.append(f"starts_with(lower(name), {name_start})")
    return _merged_sets(f"({' OR '.join(tests)})"), params


def _merged_sets(meant: str) -> str:
    """`records`: the merged sets of directory $1's persons who meet an SQL condition."""
    return f"""
        meant AS (SELECT person_id, parent_id, seq FROM core.persons WHERE directory_id = $1 AND {meant}),
        up AS (
            FROM meant
            UNION SELECT p.person_id, p.parent_id, p.seq FROM core.persons p JOIN up ON p.person_id = up.parent_id
        ), sets AS (
            SELECT person_id, person_id AS root, seq AS root_seq FROM up WHERE parent_id IS NULL
            UNION SELECT p.person_id, s.root, s.root_seq FROM core.persons p JOIN sets s ON p.parent_id = s.person_id
        ), records AS MATERIALIZED (
            SELECT p.*, s.root::VARCHAR AS root_person_id, s.root_seq FROM sets s JOIN core.persons p USING (person_id)
        )
    """


def namesakes(catalog: Catalog, account_id: int, directory: str, person_ids: Sequence[str]) -> list[tuple[str, str]]:
    """These people (roots) with all others of their names, without hidden ones; of each name the _NAMESAKES oldest."""
    return catalog.rows(
        """
        WITH looked AS MATERIALIZED (SELECT unnest($2::UUID[]) AS person_id),
        names AS (SELECT DISTINCT nfc_normalize(name) FROM core.persons JOIN looked USING (person_id) WHERE name <> ''),
        named AS MATERIALIZED (
            SELECT person_id, seq, nfc_normalize(name) AS name FROM core.persons
            WHERE directory_id = $1 AND parent_id IS NULL AND NOT coalesce(ignored, false)
                AND nfc_normalize(name) IN (FROM names)
            QUALIFY row_number() OVER (PARTITION BY nfc_normalize(name) ORDER BY seq) <= $3
        )
        SELECT a.person_id::VARCHAR, b.person_id::VARCHAR FROM named a JOIN named b USING (name)
        WHERE a.seq <> b.seq AND a.person_id IN (FROM looked) ORDER BY a.seq, b.seq
        """,
        [directory_id(catalog, account_id, directory), list(person_ids), _NAMESAKES],
    )


def faces_of_people(catalog: Catalog, person_ids: Sequence[str]) -> pa.Table:
    """face_id, person_id, path, outcome, similarity_score, x1, y1, x2, y2, reference, stated, taken_at: the faces
    of these records, by path (null: posted). `reference`: it is the record's reference; `stated`: an `is` constraint
    assigns it; `taken_at`: of its photo."""
    faces = faces_page(catalog, person_ids, None, EVERYBODY[1])
    places = ["x1", "y1", "x2", "y2"]
    names = ["face_id", "person_id", "path", "outcome", "similarity_score", *places, "reference", "stated", "taken_at"]
    return faces.select(names).sort_by([("path", "ascending"), ("face_id", "ascending")])


def faces_page(
    catalog: Catalog,
    person_ids: Sequence[str],
    after: tuple[float, int] | None,
    count: int,
    *,
    by: str = ADDED,
    year: int | None = None,
    on_photos_with: Sequence[str] | None = None,
) -> pa.Table:
    """Up to `count` faces (`_FACES`) of these records after position `after`, `by` id (ADDED), similarity score (SCORE)
    or date of the photo (TAKEN), then id; those without score or date last. `year`: only of photos taken then.
    `on_photos_with`: only of photos that show one of these records, too. The next `after` is the last row's
    (place, id)."""
    place = _PLACES[by]
    return catalog.read(
        f"""
        WITH wanted AS MATERIALIZED (
            SELECT f.face_id, {place} AS place FROM core.faces f JOIN core.media m USING (media_id)
            JOIN core.detections d ON d.face_id = f.face_id AND d.generation = $1
            WHERE f.person_id IN (SELECT unnest($2::UUID[])) AND ({place}, f.face_id) > ($3::DOUBLE, $4::BIGINT)
                AND ($6::INTEGER IS NULL OR year(m.taken_at) = $6)
                AND ($7::UUID[] IS NULL OR f.media_id IN (
                    SELECT media_id FROM core.faces WHERE person_id IN (SELECT unnest($7::UUID[]))))
            ORDER BY place, f.face_id LIMIT $5
        ) {_FACES} ORDER BY w.place, w.face_id
        """,
        [catalog.generation, list(person_ids), *(after or (-math.inf, -1)), count, year, on_photos_with],
    )


def seen_with(catalog: Catalog, person_ids: Sequence[str], count: int) -> list[tuple[str, int]]:
    """(root, photos): the other people, not hidden, who are on most photos of runs with these records."""
    return catalog.rows(
        """
        WITH RECURSIVE theirs AS MATERIALIZED (
            SELECT DISTINCT media_id FROM core.faces WHERE person_id IN (SELECT unnest($1::UUID[]))
        ), others AS MATERIALIZED (
            SELECT f.person_id, m.path FROM core.faces f JOIN core.media m USING (media_id)
            WHERE m.path IS NOT NULL AND f.media_id IN (FROM theirs) AND f.person_id IS NOT NULL
                AND f.person_id NOT IN (SELECT unnest($1::UUID[]))
        ), up AS (
            SELECT person_id, parent_id, person_id AS root FROM core.persons
            WHERE person_id IN (SELECT person_id FROM others)
            UNION SELECT u.person_id, p.parent_id, p.person_id
            FROM up u JOIN core.persons p ON p.person_id = u.parent_id
        )
        SELECT u.root::VARCHAR, count(DISTINCT o.path) AS photos FROM others o JOIN up u USING (person_id)
        JOIN core.persons p ON p.person_id = u.root
        WHERE u.parent_id IS NULL AND NOT coalesce(p.ignored, false)
        GROUP BY u.root ORDER BY photos DESC, u.root LIMIT $2
        """,
        [list(person_ids), count],
    )


def years_of(catalog: Catalog, person_ids: Sequence[str]) -> dict[int | None, int]:
    """Year -> number of these records' faces on photos taken then; None: their date is not known."""
    return dict(
        catalog.rows(
            "SELECT year(m.taken_at), count(*) FROM core.faces f JOIN core.media m USING (media_id)"
            " WHERE f.person_id IN (SELECT unnest(?::UUID[])) GROUP BY 1 ORDER BY 1 NULLS LAST",
            [list(person_ids)],
        )
    )


def faces_by_id(catalog: Catalog, face_ids: Sequence[int]) -> pa.Table:
    """The existing ones of these faces (`_FACES`), by id."""
    wanted = "WITH wanted AS MATERIALIZED (SELECT unnest($2::BIGINT[]) AS face_id, 0::DOUBLE AS place)"
    return catalog.read(f"{wanted} {_FACES} ORDER BY w.face_id", [catalog.generation, list(face_ids)])


def unassigned_faces(
    catalog: Catalog,
    account_id: int,
    directory: str,
    after: int = 0,
    count: int = EVERYBODY[1],
    *,
    nobodys: bool | None = False,
) -> pa.Table:
    """Up to `count` faces (`_FACES`) of a directory's photos that have no person, the largest first, behind the face
    `after` (0: from the start), which may have one by now. Further columns: size (longer side of the box, pixels),
    rejection_reasons, total (of all pages), and why: `rejected`, `unmatched` (a further face of a named photo),
    `nobody` (a user said so, of this face or of a copy) or `deleted` (its person was, by a stricter gate).

    `nobodys`: only those of `nobody`, only others, or with None all. Raises FaceUnknown.
    """
    here = [account_id, directory]
    if after and not catalog.rows(_PLACE_OF_FACE, [catalog.generation, *here, after]):
        raise FaceUnknown(face_ids=str(after))
    return catalog.read(
        f"""
        WITH {_UNASSIGNED} AND ($6::BOOLEAN IS NULL OR $6 = (why = 'nobody'))
        ), wanted AS MATERIALIZED (
            SELECT face_id, -size AS place FROM unassigned
            WHERE $4 = 0 OR (-size, face_id) > (({_PLACE_OF_FACE}), $4::BIGINT)
            ORDER BY place, face_id LIMIT $5
        )
        SELECT s.*, u.* EXCLUDE (face_id), (SELECT count(*) FROM unassigned) AS total
        FROM ({_FACES}) s JOIN unassigned u ON u.face_id = s.face_id ORDER BY s.place, s.face_id
        """,
        [catalog.generation, *here, after, count, nobodys],
    )


def twice_on_photos(
    catalog: Catalog, account_id: int, directory: str | None = None, run_ids: Sequence[str] = ()
) -> pa.Table:
    """Who is twice on a photo of a run, unless that is allowed on it: entry, said, media_id, path, sha256, person_id
    (the root), name, face_id, record_id, x1, y1, x2, y2, pixels (width * height).

    An entry, numbered from 0, is a person and a photo; its rows are the person's faces, the largest first, without
    boxes that overlap the largest by half. `said`: a user said so, by a `merge` or of two of the `faces`; null: nobody
    did. These come first, then by media_id and person_id. Without a directory of all, without runs of all.
    """
    of_runs = "AND f.media_id IN (SELECT media_id FROM core.media WHERE run_id IN (SELECT unnest($4::VARCHAR[])))"
    rows = catalog.read(
        f"""
        WITH RECURSIVE up AS (
            SELECT person_id, parent_id AS root FROM core.persons WHERE parent_id IS NOT NULL
            UNION SELECT u.person_id, p.parent_id FROM up u JOIN core.persons p ON p.person_id = u.root
            WHERE p.parent_id IS NOT NULL
        ), roots AS MATERIALIZED (
            SELECT u.person_id, u.root FROM up u JOIN core.persons p ON p.person_id = u.root WHERE p.parent_id IS NULL
        ), shown AS MATERIALIZED (
            SELECT f.face_id, f.media_id, f.ordinal, f.person_id, coalesce(r.root, f.person_id) AS root
            FROM core.faces f LEFT JOIN roots r ON r.person_id = f.person_id WHERE f.person_id IS NOT NULL
                {of_runs if run_ids else ""}
        ), several AS MATERIALIZED (
            SELECT media_id, root, min(ordinal) AS largest FROM shown GROUP BY ALL HAVING count(*) > 1
        ), placed AS MATERIALIZED (
            SELECT m.directory, m.media_id, m.path, m.sha256, m.width::BIGINT * m.height AS pixels, v.root, v.largest,
                s.face_id, s.ordinal, s.person_id, d.x1, d.y1, d.x2, d.y2
            FROM several v JOIN shown s ON s.media_id = v.media_id AND s.root = v.root
            JOIN core.media m ON m.media_id = v.media_id
            JOIN core.detections d ON d.face_id = s.face_id AND d.generation = $1
            ANTI JOIN ({TWICE_ALLOWED}) a
                ON a.account_id = m.account_id AND a.directory = m.directory AND a.sha256 = m.sha256
            WHERE m.account_id = $2 AND ($3::VARCHAR IS NULL OR m.directory = $3) AND m.path IS NOT NULL
        )
        SELECT f.directory, f.media_id, f.path, f.sha256, f.root::VARCHAR AS person_id, p.name, f.face_id,
            f.person_id::VARCHAR AS record_id, f.x1, f.y1, f.x2, f.y2, f.pixels,
            f.face_id IN (SELECT face_id FROM core.facts WHERE kind = 'is') AS stated
        FROM placed f JOIN placed l ON l.media_id = f.media_id AND l.root = f.root AND l.ordinal = l.largest
        JOIN core.persons p ON p.person_id = f.root
        WHERE f.ordinal = f.largest OR NOT {same_face("f", "l")}
        QUALIFY count(*) OVER (PARTITION BY f.media_id, f.root) > 1 ORDER BY f.media_id, f.root, f.ordinal
        """,
        [catalog.generation, account_id, directory, *([list(run_ids)] if run_ids else [])],
    ).to_pylist()
    entries = [[*faces] for _, faces in groupby(rows, itemgetter("media_id", "person_id"))]
    records: dict[str, set[str]] = {}
    for faces in entries:
        if len(own := {face["record_id"] for face in faces}) > 1:
            records.setdefault(faces[0]["directory"], set()).update(own)
    parts = {k: v for name, own in records.items() for k, v in regrouped(catalog, account_id, name, own).items()}
    told = [(_who_said(faces, parts), faces) for faces in entries]
    told.sort(key=lambda entry: (entry[0] is not None, entry[1][0]["media_id"], entry[1][0]["person_id"]))
    return pa.Table.from_pylist(
        [{"entry": number, "said": said, **face} for number, (said, faces) in enumerate(told) for face in faces], _TWICE
    )


def _who_said(faces: Sequence[Mapping[str, Any]], parts: Mapping[str, str]) -> str | None:
    """`said` of an entry. `parts`: as `regrouped`."""
    if sum(face["stated"] for face in faces) > 1:
        return "faces"
    return "merge" if len({parts.get(face["record_id"], face["record_id"]) for face in faces}) > 1 else None


def best_faces(catalog: Catalog, person_ids: Sequence[str], count: int) -> pa.Table:
    """Each record's best `count` faces (`_FACES`) with an embedding, by quality."""
    return catalog.read(
        f"""
        WITH wanted AS MATERIALIZED (
            SELECT f.face_id, 0::DOUBLE AS place FROM core.faces f
            JOIN core.detections d ON d.face_id = f.face_id AND d.generation = $1
            WHERE f.person_id IN (SELECT unnest($2::UUID[])) AND f.face_id IN ({embedded()})
            QUALIFY row_number() OVER (PARTITION BY f.person_id ORDER BY {QUALITY} DESC, f.face_id) <= $3
        ) {_FACES} ORDER BY quality DESC, w.face_id
        """,
        [catalog.generation, list(person_ids), count],
    )


def faces_to_compare(catalog: Catalog, account_id: int, directory: str) -> pa.Table:
    """face_id, path, ordinal, person_id (the root), name, label, stated, joined, files (of the vectors in both
    generations): faces of named people with a vector in a shard of each generation.

    `label`: the source's name of the photo's largest face; `stated`: an `is` constraint assigns the face; `joined`:
    equal for records that are one or were joined by a regroup.
    """
    other = 0 if catalog.other is None else catalog.other.number
    table = catalog.read(
        f"""
        WITH RECURSIVE {_merged_sets("name IS NOT NULL")}, named AS (
            SELECT person_id, root_person_id,
                first_value(name IGNORE NULLS) OVER (PARTITION BY root_person_id ORDER BY seq <> root_seq, seq
                    ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS name
            FROM records
        )
        SELECT f.face_id, m.path, f.ordinal, n.person_id::VARCHAR AS record_id, n.root_person_id AS person_id, n.name,
            if(f.ordinal = 0, m.name, NULL) AS label,
            f.face_id IN (SELECT face_id FROM core.facts WHERE kind = 'is') AS stated, s.file, t.file AS other_file
        FROM named n JOIN core.faces f ON f.person_id = n.person_id JOIN core.media m ON m.media_id = f.media_id
        JOIN core.embeddings e ON e.face_id = f.face_id AND e.generation = $2
        JOIN core.embedding_shards s ON s.embedding_shard_id = e.embedding_shard_id
        JOIN core.embeddings o ON o.face_id = f.face_id AND o.generation = $3
        JOIN core.embedding_shards t ON t.embedding_shard_id = o.embedding_shard_id
        ORDER BY f.face_id
        """,
        [directory_id(catalog, account_id, directory), catalog.generation, other],
    )
    records = table["record_id"].to_pylist()
    tops = regrouped(catalog, account_id, directory, dict.fromkeys(records))
    numbers = {top: number for number, top in enumerate(dict.fromkeys(tops.values()))}
    groups = [numbers[tops[record_id]] for record_id in records]
    return table.drop_columns(["record_id"]).append_column("joined", pa.array(groups, pa.int64()))


def rejections(catalog: Catalog, account_id: int, directory: str) -> dict[str, int]:
    """Reason -> number of the directory's rejected faces; a face may have several."""
    return dict(
        catalog.rows(
            "SELECT unnest(string_split(d.rejection_reasons, ',')) AS reason, count(*) FROM core.faces f"
            " JOIN core.media m USING (media_id) JOIN core.detections d ON d.face_id = f.face_id AND d.generation = ?"
            " WHERE m.account_id = ? AND m.directory = ? AND f.outcome = 'rejected' GROUP BY 1 ORDER BY 2 DESC, 1",
            [catalog.generation, account_id, directory],
        )
    )


def unassigned_reasons(catalog: Catalog, account_id: int, directory: str) -> dict[str, int]:
    """Why, as `unassigned_faces` has it -> number of a directory's faces of photos, the most first."""
    return dict(
        catalog.rows(
            f"WITH {_UNASSIGNED}) SELECT why, count(*) FROM unassigned GROUP BY 1 ORDER BY 2 DESC, 1",
            [catalog.generation, account_id, directory],
        )
    )


def unassigned_count(catalog: Catalog, account_id: int, directory: str) -> int:
    """The number of a directory's faces without a person, rejected ones included."""
    return int(
        catalog.one(
            "SELECT count(*) FROM core.faces f JOIN core.media m USING (media_id) WHERE m.account_id = ?"
            " AND m.directory = ? AND f.person_id IS NULL AND f.outcome <> 'removed'",
            [account_id, directory],
        )
    )


def people_counts(catalog: Catalog, account_id: int) -> pa.Table:
    """directory, people (merged sets are one), unnamed, hidden: the numbers of an account's directories."""
    return catalog.read(
        """
        SELECT t.name AS directory, count(p.person_id) AS people,
            count(p.person_id) FILTER (p.name IS NULL) AS unnamed, count(p.person_id) FILTER (p.ignored) AS hidden
        FROM core.directories t LEFT JOIN core.persons p ON p.directory_id = t.directory_id AND p.parent_id IS NULL
        WHERE t.account_id = ? GROUP BY t.directory_id, t.name ORDER BY t.name
        """,
        [account_id],
    )


def counts_of(catalog: Catalog, account_id: int, directory: str) -> tuple[int, dict[str, int], int]:
    """A directory's number of decoded photos of runs, number of faces by outcome, and bytes of stored pictures."""
    here = [account_id, directory]
    photos = catalog.one(
        "SELECT count(*) FROM core.media WHERE account_id = ? AND directory = ? AND status IN (?, ?)",
        [*here, OK, NO_FACE],
    )
    faces = catalog.rows(
        "SELECT f.outcome, count(*) FROM core.faces f JOIN core.media m USING (media_id)"
        " WHERE m.account_id = ? AND m.directory = ? AND f.outcome <> 'removed' GROUP BY 1 ORDER BY 1",
        here,
    )
    picture_bytes = catalog.one(
        "SELECT coalesce(sum(o.bytes), 0)::BIGINT FROM core.persons p"
        " JOIN core.reference_faces r ON r.person_id = p.person_id AND r.generation = ?"
        " JOIN core.objects o ON o.image_guid = r.image_guid WHERE p.directory_id = ?",
        [catalog.generation, directory_id(catalog, account_id, directory)],
    )
    return int(photos), dict(faces), int(picture_bytes)
