"""IdentityService: everything that the server answers, over one open store, without HTTP.

Methods are thread-safe. The caller has authenticated the account. Unknown directories count as empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa

from pipeline.config import MatchSettings, Settings
from pipeline.errors import ObjectReplaced, ObjectUnknown, PersonUnknown, StoreDamaged, StoreError
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import Decoder
from pipeline.matching.calibration import Calibration
from pipeline.matching.score import strength, strong_score
from pipeline.people.background import Housekeeper, LongWork
from pipeline.people.batcher import MicroBatcher
from pipeline.people.corrections import LONG, Corrections
from pipeline.people.directory import Directories
from pipeline.people.drawn_faces import find_face, is_measured_by
from pipeline.people.posts import PostHandler
from pipeline.people.shards import Enrolment
from pipeline.people.types import PersonView, PostRequest, PostResult, StoredImage
from pipeline.people.views import person_views
from pipeline.runtime.device import resolve_device
from pipeline.runtime.shared_lock import SharedLock
from pipeline.store import (
    ADD_FACE,
    Candidate,
    Catalog,
    CorrectionAnswer,
    CorrectionRequest,
    Deleted,
    FaceAnswer,
    LocalStore,
    PersonRecord,
    SearchQuery,
    reference_origins,
)
from pipeline.types import QUALITIES

_SWITCH_S: Final = 10.0  # that a switch waits for running requests, blocking new ones


class IdentityService:
    """Recognises, inserts, lists and changes the identities of a store.

    Raises RequestError, ImageRejected, StoreError.
    """

    def __init__(self, client: LocalStore, extractor: BatchExtractor, decoder: Decoder, settings: Settings) -> None:
        self._client, self._decoder = client, decoder
        self.extractor = extractor
        # A quantized copy is faster on a CPU for the few faces of a request.
        self.directories = Directories(client, resolve_device(settings.run.device), quantized=True)
        self.batcher = MicroBatcher(extractor, settings)
        self._generation = SharedLock()  # shared by decisions that use the current generation
        self._post_handler = PostHandler(client, self.directories, self.batcher, decoder, settings, self._generation)
        self._long_work = LongWork("corrections")
        self._corrections = Corrections(client, self.directories, decoder, settings.serve)
        self._shard_work = LongWork("shards")
        self._min_face_px = settings.detect.min_face_px
        self._enrolment: Enrolment | None = None  # of the run whose shards are committed
        self._housekeeper = Housekeeper(client, self.directories)

    def load(self) -> None:
        """Loads all directories; lets the housekeeper compact what a killed server left."""
        self.directories.load_all()
        self._client.submit(Catalog.prefer_short_statements)
        self._housekeeper.note_change()

    def post(self, account_id: int, directory: str, data: bytes, request: PostRequest) -> PostResult:
        """Recognises the faces of an image; inserts or updates on request, durably.

        Raises ImageRejected, PersonHeadersRequired, ExternalIdTaken, TooManyDirectories, Overloaded.
        """
        result = self._post_handler.post(account_id, directory, data, request)
        if result.account_updated:
            self._housekeeper.note_change()
        return result

    def search(self, query: SearchQuery) -> list[FaceAnswer]:
        """Recognises the faces of an encoded image; candidates have the photo of their reference face, and a word for
        the score. Stores nothing. Raises ImageRejected, Overloaded."""
        with self.directories.using(query.account_id, query.directory) as opened:
            match = opened.match(MatchSettings(threshold=query.threshold), given=query.threshold_given)
        request = PostRequest(threshold=match.threshold, insert=False, update=False, similar_limit=query.top)
        faces = self._post_handler.post(query.account_id, query.directory, query.image, request).faces
        shown = [match.person for face in faces for match in face.similar or ()]
        shown += [face.person for face in faces if face.person is not None]
        origins = self._client.ask(reference_origins, sorted({person.root.person_id for person in shown}))
        strong = strong_score(Calibration.from_dict(self._client.identity.calibration), match.threshold)

        def candidate(person: PersonView, score: float) -> Candidate:
            root, origin = person.root, origins.get(person.root.person_id)
            photo = None if origin is None else origin.path
            return Candidate(root.person_id, root.name, root.external_id, score, photo, strength(score, strong))

        return [
            FaceAnswer(
                box=face.face.box,
                confidence=face.face.fields["confidence"],
                quality={name: face.face.fields[name] for name in QUALITIES},
                identity=None if face.person is None else candidate(face.person, face.score or 0.0),
                similar=[candidate(match.person, match.score) for match in face.similar or ()],
            )
            for face in faces
        ]

    # Reading

    def records(self, account_id: int, directory: str) -> Iterator[PersonRecord]:
        """All records, in insertion order."""
        with self.directories.using(account_id, directory) as opened:
            yield from opened.everybody()

    def people(self, account_id: int, directory: str, person_ids: Sequence[str]) -> list[PersonView]:
        """These persons, without unknown ones."""
        with self.directories.using(account_id, directory) as opened:
            found = opened.of(person_ids)
            return person_views(opened, [found[person_id] for person_id in person_ids if person_id in found])

    def person(self, account_id: int, directory: str, person_id: str) -> PersonView:
        """Raises PersonUnknown."""
        for view in self.people(account_id, directory, [person_id]):
            return view
        raise PersonUnknown

    def people_by_external_id(self, account_id: int, directory: str, external_id: str) -> list[PersonView]:
        """The people with this external id, in insertion order."""
        with self.directories.using(account_id, directory) as opened:
            return person_views(opened, opened.with_external_id(external_id))

    def merged_set(self, account_id: int, directory: str, person_id: str) -> list[str]:
        """The merged set of a person, its root first. Raises PersonUnknown."""
        with self.directories.using(account_id, directory) as opened:
            members = opened.merged_set(person_id)
        if not members:
            raise PersonUnknown
        return [record.person_id for record in members]

    def pictures(self, account_id: int, directory: str, person_ids: Sequence[str]) -> dict[str, str]:
        """By person, the guid of the first picture in its merged set; without those who have none."""
        with self.directories.using(account_id, directory) as opened:
            sets = opened.merged_sets(person_ids)
        guids = {p: next((r.image_guid for r in records if r.image_guid), None) for p, records in sets.items()}
        return {person_id: guid for person_id, guid in guids.items() if guid is not None}

    def face_image(self, account_id: int, directory: str, person_id: str) -> StoredImage:
        """The record's own current picture. Raises PersonUnknown, and ObjectUnknown if it has none."""
        with self.directories.using(account_id, directory) as opened:
            while True:
                guid = opened.record(person_id).image_guid
                if guid is None:
                    raise ObjectUnknown
                try:
                    return StoredImage(guid, *self._client.read_image(account_id, guid))
                except (ObjectUnknown, StoreDamaged):
                    with opened.lock.alone():  # waits for the post that is replacing it
                        if opened.record(person_id).image_guid == guid:
                            raise

    def stored_object(self, account_id: int, directory: str, guid: str, *, at_rest: bool) -> StoredImage:
        """The picture `guid`, or its bytes `at_rest` (encrypted in an encrypted store).

        Raises ObjectUnknown, or ObjectReplaced for a day after an update replaced it.
        """
        with self.directories.using(account_id, directory) as opened:
            try:
                if not opened.has_picture(guid):
                    raise ObjectUnknown
                return StoredImage(guid, *self._client.read_image(account_id, guid, at_rest=at_rest))
            except ObjectUnknown:
                if self._client.image_was_replaced(account_id, directory, guid):
                    raise ObjectReplaced from None
                raise

    # Changing

    def correct(self, request: CorrectionRequest, decoded: pa.Table | None = None) -> CorrectionAnswer:
        """Makes a correction (`Corrections.make`). Raises RequestErrors such as PersonUnknown, ExternalIdTaken,
        MetadataTooLarge, CorrectionImpossible, StatedTwoPeople."""
        self._housekeeper.note_change()
        if self._is_long(request):
            return self._long_work.do(self._corrections.make, request, decoded, self._long_work.priority)
        if request.kind == ADD_FACE:
            return self._add_face(request)
        with self._generation.shared():
            return self._corrections.make(request, decoded)

    def _add_face(self, request: CorrectionRequest) -> CorrectionAnswer:
        place = request.account_id, request.directory
        while True:
            with self.directories.using(*place) as opened:
                extract, least = self.batcher.extract, self._min_face_px
                found = find_face(self._client, opened, request, self._decoder, extract, least)
            with self._generation.shared():
                if is_measured_by(self._client.identity.model, found):  # else found before a switch to another model
                    return self._corrections.make(replace(request, gate=self.match_of(*place)), found)

    def _is_long(self, request: CorrectionRequest) -> bool:
        """Whether it may change thousands of faces. An undo is long if its correction was; its dry run never queues."""
        if request.kind != "undo":
            return request.kind in LONG
        if request.dry_run:
            return False
        which = request.account_id, request.directory, request.correction_id, request.undo_origin
        undone = self._client.correction_to_undo(*which)
        return undone is not None and undone.what in LONG

    def delete_directory(self, account_id: int, directory: str, *, no_trace: bool = False) -> Deleted:
        """See `LocalStore.delete_directory`."""
        with (
            self._generation.shared(),
            self.directories.using(account_id, directory) as opened,
            self.directories.writing(opened),
        ):
            self._housekeeper.note_change()
            deleted = self._client.delete_directory(account_id, directory, no_trace=no_trace)
            opened.load()
        return deleted

    def enrol_shard(self, run_id: str, shard: int) -> None:
        """Decides and commits an extracted shard, at low priority; does nothing if it is committed, as a run may
        transfer it again. Raises StoreError, TooManyDirectories."""
        self._shard_work.do(self._enrol, run_id, shard)
        self._housekeeper.note_change()

    def _enrol(self, run_id: str, shard: int) -> None:
        client, priority = self._client, self._shard_work.priority
        if shard in client.committed_shards(run_id):
            return
        run = client.run_row(run_id)
        manifest = client.read_manifest(run, shard)
        if self._enrolment is None or self._enrolment.run_id != run_id:
            self._enrolment = Enrolment(client, run, self._decoder, self.directories, priority)
        self._enrolment.commit(shard, manifest, client.read_run_shard(run_id, shard))
        if shard + 1 == run.shards:
            self._enrolment = None  # frees faces

    # Two generations

    def is_threshold_set(self, account_id: int, directory: str) -> bool:
        """Whether a regroup set the directory's threshold, and no flag overrides it."""
        with self.directories.using(account_id, directory) as opened:
            return opened.threshold == self._post_handler.match_of(opened).threshold

    def match_of(self, account_id: int, directory: str) -> MatchSettings:
        """The quality gate and threshold for posts to a directory that give none."""
        with self.directories.using(account_id, directory) as opened:
            return self._post_handler.match_of(opened)

    def switch_generation(
        self, match: MatchSettings, request: CorrectionRequest | None, *, back: bool
    ) -> CorrectionAnswer | None:
        """`Corrections.switch_generation`, queued with long corrections. Later posts wait until the new references are
        mapped, and use `match`. Also raises StoreError if running requests take too long."""
        self._housekeeper.note_change()
        committing, priority = partial(self._switching, match), self._long_work.priority
        switch = self._corrections.switch_generation
        return self._long_work.do(switch, request, back=back, committing=committing, priority=priority)

    @contextmanager
    def _switching(self, match: MatchSettings) -> Iterator[None]:
        """Blocks requests during the block and, if it switched the generation, until its references are mapped. Raises
        StoreError if running requests take too long."""
        self._client.fold_tails()  # before requests are blocked
        with ExitStack() as stack:
            try:
                stack.enter_context(self._generation.alone(_SWITCH_S))
            except TimeoutError as exc:
                raise StoreError(message="Requests to the server take long: nothing was changed. Try again.") from exc
            before = self._client.generation
            try:
                yield
            finally:  # also on an error: it may come after the commit
                if self._client.generation != before:
                    self._post_handler.take_generation(match)
                    self.directories.switch()

    # Keeping house

    def close(self) -> None:
        """Finishes requests in progress and stops the threads. The store stays open."""
        self.batcher.close()
        self._shard_work.close()
        self._long_work.close()
        self._housekeeper.close()
