"""Whatever users, requests and runs do in any order, with index segments written, rewritten and lost in between:
searches see what the catalog and the embeddings say, and nothing that was erased is in a file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from coded_faces import Shown, photo
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from pipeline.config import MatchSettings
from pipeline.errors import InputError, RequestError, UsageError
from pipeline.extraction.images.decode import Decoder
from pipeline.jobs.people import People
from pipeline.jobs.store import Store
from pipeline.people.service import IdentityService
from pipeline.people.types import PostRequest
from pipeline.store import segments
from pipeline.store.catalog.directories import directory_ids
from pipeline.store.local import LocalStore
from tests.identities.planted import listed
from tests.people.coded_archive import SETTINGS, SIZE, CodedExtractor, fill, run_over, write_photo
from tests.store.store_samples import segments_of, small_segments, tombstones_of
from tests.store.test_index_segments import assert_right, files_with, recorded

picks = st.integers(0, 30)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos of three persons, and the store of a run over them."""
    return fill(tmp_path_factory.mktemp("template"))


@pytest.mark.slow
def test_searches_see_what_is_recorded_and_what_is_erased_is_in_no_file(
    template: Path, tmp_path: Path, journeys: bool, full: bool
) -> None:
    numbers, written, removed = iter(range(10**6)), set[int](), set[bool]()

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            number = next(numbers)
            self.folder = shutil.copytree(template, tmp_path / str(number))
            self.sizes = small_segments(*((1, 2), (2, 6))[number % 2])
            self.sizes.__enter__()
            self.vectors: dict[int, bytes] = {}  # of each face that ever had one
            self.owners: dict[int, str | None] = {}  # the last one of each
            self._open()

        def _open(self) -> None:
            self.store = LocalStore.open(self.folder / "store", command="test")
            self.service = IdentityService(self.store, CodedExtractor(SIZE), Decoder(SETTINGS.decode), SETTINGS)  # type: ignore[arg-type]
            self.people = People(Store(self.store, SETTINGS, self.service))

        def _close(self) -> None:
            self.service.close()
            self.store.close()

        def teardown(self) -> None:
            self._close()
            self.sizes.__exit__(None, None, None)
            shutil.rmtree(self.folder)

        def _ids(self) -> list[str]:
            if not self.store.directories():
                return []
            return [view.record.person_id for view in listed(self.service, 1, "main")]

        def _try(self, work: Callable[[], object]) -> None:
            """What is refused changes nothing."""
            with suppress(RequestError, UsageError, InputError):
                work()

        def _faces(self) -> list[int]:
            return self.store.read("SELECT face_id FROM core.faces ORDER BY 1")["face_id"].to_pylist()

        # What comes

        @rule(persons=st.lists(st.integers(1, 12), min_size=1, max_size=2, unique=True), quality=st.integers(80, 99))
        def post(self, persons: list[int], quality: int) -> None:
            """Somebody new, or a better reference of somebody."""
            shown = [Shown(number, 100 + quality, quality / 100) for number in persons]
            self._try(lambda: self.service.post(1, "main", photo(*shown), PostRequest()))

        @rule(persons=st.lists(st.integers(1, 12), min_size=1, max_size=3), variant=picks)
        def run(self, persons: list[int], variant: int) -> None:
            """Photos of a person each; a photo of the same name changed."""
            self._close()
            for place, number in enumerate(persons):
                write_photo(self.folder / "photos", f"n{place}.png", Shown(number, 200 + variant))
            run_over(self.folder / "photos", self.folder / "store")
            self._open()

        # What users do

        @rule(face=picks, person=picks)
        def move(self, face: int, person: int) -> None:
            ids = [*self._ids(), None]
            if faces := self._faces():
                self._try(lambda: self.people.move(faces[face % len(faces)], ids[person % len(ids)]))

        @rule(face=picks)
        def split(self, face: int) -> None:
            faces = [face for face, owner in self.owners.items() if owner in self._ids()]
            if faces:
                chosen = faces[face % len(faces)]
                self._try(lambda: self.people.split(str(self.owners[chosen]), [chosen]))

        @rule(one=picks, other=picks)
        def merge(self, one: int, other: int) -> None:
            if ids := self._ids():
                self._try(lambda: self.people.merge(ids[one % len(ids)], ids[other % len(ids)]))

        @rule(person=picks)
        def forget(self, person: int) -> None:
            if ids := self._ids():
                self._try(lambda: self.people.forget(ids[person % len(ids)]))

        @rule(media=picks)
        def forget_photos(self, media: int) -> None:
            if known := self.store.read("SELECT media_id FROM core.media ORDER BY 1")["media_id"].to_pylist():
                self._try(lambda: self.people.forget_photos([known[media % len(known)]]))

        @rule(threshold=st.sampled_from([0.01, 0.54, 3.0]), quality=st.sampled_from([0.4, 0.85]))
        def regroup(self, threshold: float, quality: float) -> None:
            gate = MatchSettings(threshold=threshold, min_cpq=quality, min_fsq=quality, min_fcq=quality)
            self._try(lambda: self.people.regroup(gate))

        @rule()
        def undo(self) -> None:
            self._try(lambda: self.people.undo())

        @rule(sure=st.integers(0, 9))
        def delete_directory(self, sure: int) -> None:
            if sure == 0 and self.store.directories():
                self._close()
                with LocalStore.open(self.folder / "store", command="delete") as store:
                    store.delete_directory(1, "main")
                self._open()

        # What the store does

        @rule()
        def fold(self) -> None:
            self.store.fold()
            written.add(len(segments_of(self.store)))
            removed.update(erase for _, erase in tombstones_of(self.store))
            alive = {vector for _, vector in recorded(self.store).values()}
            sql = "SELECT face_id FROM core.embeddings UNION SELECT face_id FROM core.pending_embeddings"
            kept = {*self.store.read(sql)["face_id"].to_pylist()}
            alive |= {self.vectors[face] for face in kept & self.vectors.keys()}
            persons = {*self.store.read("SELECT person_id::VARCHAR AS p FROM core.persons")["p"].to_pylist()}
            faces = {*self._faces()}
            for face, vector in self.vectors.items():
                replaced = face not in faces and self.owners[face] in persons  # of a post: its person is still there
                if face not in kept and vector not in alive and not replaced:
                    assert files_with(self.store.path, vector) == [], face

        @rule()
        def rewrite(self) -> None:
            with self.store.embeddings_lock:
                segments.rewrite(self.store)

        @rule(lost=picks)
        def reopen(self, lost: int) -> None:
            """Now and then a segment is lost."""
            self._close()
            files = sorted((self.folder / "store").glob("references/*/*"))
            if files and lost % 4 == 0:
                files[lost % len(files)].write_bytes(b"lost")
                self._open()
                for number in self.store.submit(directory_ids):
                    assert number == 1
                    self.store.references(1, "main")
            else:
                self._open()

        @invariant()
        def all_is_right(self) -> None:
            assert_right(self.store)
            sql = "SELECT f.face_id, f.person_id::VARCHAR AS p FROM core.faces f WHERE f.person_id IS NOT NULL"
            for row in self.store.read(sql).to_pylist():
                self.owners[row["face_id"]] = row["p"]
            sql = "SELECT face_id FROM core.embeddings UNION SELECT face_id FROM core.pending_embeddings"
            for face, found in self.store.face_vectors(self.store.read(sql)["face_id"].to_pylist()).items():
                self.vectors[face] = found.embedding.tobytes()
                self.owners.setdefault(face, None)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=100 if full else 5 if journeys else 1,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert not journeys or max(written) > 1
    assert removed <= {False}
