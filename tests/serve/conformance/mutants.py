"""Servers that each break one rule on purpose, which proves that the conformance tests can fail.

A mutant replaces functions of the product in the process that serves. `MUTANTS` lists all of them, each with the test
that must notice it; the test's docstring states the rule. `forked_mutant` serves them.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def replaced(module: str, attribute: str, change: Callable[[Any], Any]) -> None:
    """Replaces `module.attribute`, or `module.Class.attribute`, by `change(original)`."""
    owner: Any = importlib.import_module(module)
    *classes, name = attribute.split(".")
    for item in classes:
        owner = getattr(owner, item)
    original = getattr(owner, name)  # fails on a wrong name, which would change nothing
    setattr(owner, name, change(original))


def asked(**changes: Any) -> Callable[[], None]:
    """Changes the parameters of every post. A value may be a function of the request."""

    def change(post: Callable[..., Any]) -> Callable[..., Any]:
        def mutant(self: Any, account_id: int, directory: str, data: bytes, request: Any) -> Any:
            changed = {key: value(request) if callable(value) else value for key, value in changes.items()}
            return post(self, account_id, directory, data, dataclasses.replace(request, **changed))

        return mutant

    return lambda: replaced("pipeline.people.service", "IdentityService.post", change)


def answered(change_face: Callable[[Any], Any], order: Callable[[list[Any]], list[Any]] = list) -> Callable[[], None]:
    """Changes the faces of every answer to a post."""

    def change(post: Callable[..., Any]) -> Callable[..., Any]:
        def mutant(*arguments: Any) -> Any:
            result = post(*arguments)
            return dataclasses.replace(result, faces=order([change_face(face) for face in result.faces]))

        return mutant

    return lambda: replaced("pipeline.people.service", "IdentityService.post", change)


def returning(module: str, attribute: str, value: Any) -> Callable[[], None]:
    """Replaces a function by one that only returns `value`."""
    return lambda: replaced(module, attribute, lambda _: lambda *_args, **_how: value)


def ignoring(kind: str) -> Callable[[], None]:
    """Answers changes of people of this kind without making them."""

    def change(correct: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, request, *more: None if request.kind == kind else correct(self, request, *more)

    return lambda: replaced("pipeline.people.service", "IdentityService.correct", change)


def constant(module: str, attribute: str, value: Any) -> Callable[[], None]:
    return lambda: replaced(module, attribute, lambda _: value)


def around(module: str, attribute: str, change: Callable[[Any], Any]) -> Callable[[], None]:
    """Changes the return value of a function."""

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **how: change(original(*arguments, **how))

    return lambda: replaced(module, attribute, wrapped)


def face_image_of_any_account() -> None:
    from pipeline.errors import PersonUnknown

    def change(face_image: Callable[..., Any]) -> Callable[..., Any]:
        def mutant(self: Any, account_id: int, directory: str, person_id: str) -> Any:
            for item in (account_id, 1, 2):
                try:
                    return face_image(self, item, directory, person_id)
                except PersonUnknown:
                    continue
            raise PersonUnknown

        return mutant

    replaced("pipeline.people.service", "IdentityService.face_image", change)


def one_directory_for_all() -> None:
    from pipeline.serve.request_parsing import directory_name

    def mutant(request: Any) -> str:
        directory_name(request)
        return "main"

    replaced("pipeline.serve.context", "directory_name", lambda _: mutant)


def stranger_gets_the_first_person() -> None:
    def change(post: Callable[..., Any]) -> Callable[..., Any]:
        def mutant(self: Any, account_id: int, directory: str, data: bytes, request: Any) -> Any:
            result = post(self, account_id, directory, data, request)
            people = self.people(account_id, directory)
            if not people:
                return result
            faces = [face if face.person else dataclasses.replace(face, person=people[0]) for face in result.faces]
            return dataclasses.replace(result, faces=faces)

        return mutant

    replaced("pipeline.people.service", "IdentityService.post", change)


def landmarks_of_the_image(face: dict[str, Any]) -> dict[str, Any]:
    for point in face["attributes"]["landmarks"].values():
        point["x"] = face["offsetX"] + point["x"] * face["relativeWidth"]
        point["y"] = face["offsetY"] + point["y"] * face["relativeHeight"]
    return face


def recognised_as_the_child() -> None:
    from pipeline.people.views import root_views

    def mutant(directory: Any, person_ids: Any) -> Any:
        children = directory.of(person_ids)
        views = root_views(directory, person_ids)
        return {p: dataclasses.replace(view, root=children[p]) for p, view in views.items()}

    replaced("pipeline.people.posts", "root_views", lambda _: mutant)


def iv_at_the_end(stored: Any) -> Any:
    return dataclasses.replace(stored, data=stored.data[16:] + stored.data[:16])


def objects_in_the_clear() -> None:
    def change(stored_object: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, account_id, directory, guid, at_rest: stored_object(  # noqa: ARG005
            self, account_id, directory, guid, at_rest=False
        )

    replaced("pipeline.people.service", "IdentityService.stored_object", change)


def created_is_ok() -> None:
    def change(json_response: Callable[..., Any]) -> Callable[..., Any]:
        return lambda body, status=200, headers=None: json_response(body, 200 if status == 201 else status, headers)

    replaced("pipeline.serve.handlers", "json_response", change)


def any_password() -> None:
    def mutant(self: Any, user_id: str, _: str) -> int | None:
        credentials = self._lookup(user_id)
        return credentials.account_id if credentials else None

    replaced("pipeline.serve.auth", "Authenticator._verify", lambda _: mutant)


@dataclasses.dataclass(frozen=True)
class Mutant:
    test: str  # file::test[id]
    patch: Callable[[], None]
    hosting: str = "local"


MUTANTS: dict[str, Mutant] = {
    "threshold-ignored": Mutant(
        "test_recognition.py::test_4_3_rule_5_the_threshold_governs_identification",
        asked(threshold=None),
    ),
    "threshold-0-is-the-default": Mutant(
        "test_insertion.py::test_4_1_threshold_0_forces_a_new_identity",
        asked(threshold=lambda request: request.threshold or None),
    ),
    "identical-image-not-known": Mutant(
        "test_insertion.py::test_4_1_identical_image_is_matched_even_at_threshold_0[default qualities]",
        returning("pipeline.matching.references", "IndexView.find_identical", None),
    ),
    "similar-reversed": Mutant(
        "test_recognition.py::test_4_3_rule_3_the_n_most_similar_highest_first",
        around("pipeline.people.posts", "most_similar", lambda ranked: [item[::-1] for item in ranked]),
    ),
    "similar-limit-ignored": Mutant(
        "test_recognition.py::test_4_1_similar_limit_is_the_number_of_identities_for_each_face",
        asked(similar_limit=lambda request: 1000 if request.similar_limit else 0),
    ),
    "another-account-reads-images": Mutant(
        "test_accounts.py::test_2_1_data_is_separate[another account]",
        face_image_of_any_account,
    ),
    "one-directory-for-all": Mutant(
        "test_accounts.py::test_2_1_data_is_separate[another directory]",
        one_directory_for_all,
    ),
    "any-password": Mutant(
        "test_accounts.py::test_5_rule_1_other_values_are_401[{user}:{password}x]",
        any_password,
    ),
    "new-id-on-a-match": Mutant(
        "test_insertion.py::test_4_2_rules_1_and_2_a_match_is_returned_and_not_inserted",
        answered(lambda face: dataclasses.replace(face, new_id=face.person and face.person.root.person_id)),
    ),
    "created-is-200": Mutant(
        "test_answers.py::test_requests_status_is_always_201[insertion]",
        created_is_ok,
    ),
    "update-ignored": Mutant(
        "test_updates.py::test_4_2_rule_6_update_true_replaces_the_image[update=true]",
        asked(update=False),
    ),
    "conflicts-ignored": Mutant(
        "test_updates.py::test_identities_update_refuses_somebody_else[only a name]",
        returning("pipeline.people.changes", "label_conflict", None),
    ),
    "every-other-name-conflicts": Mutant(
        "test_updates.py::test_identities_update_takes_the_same_person[another name with the same id]",
        returning("pipeline.people.changes", "label_conflict", "name"),
    ),
    "anybody-is-the-named-person": Mutant(
        "test_named_person.py::test_parameters_a_forced_update_changes_the_named_person_alone",
        asked(update_person_id=None),
    ),
    "names-byte-by-byte": Mutant(
        "test_updates.py::test_parameters_names_are_compared_in_nfc[NFC]",
        lambda: replaced("pipeline.people.rules", "same_name", lambda _: lambda one, other: one == other),
    ),
    "first-name-alone-is-the-name": Mutant(
        "test_updates.py::test_parameters_names_are_compared_like_with_like[names0-False]",
        lambda: replaced("pipeline.people.rules", "_said_name", lambda _: lambda _record, said: said.name),
    ),
    "parts-of-names-ignored": Mutant(
        "test_updates.py::test_parameters_names_are_compared_like_with_like[names5-True]",
        returning("pipeline.people.rules", "_parts", ()),
    ),
    "guards-ignored": Mutant(
        "test_requests.py::test_parameters_a_guard_is_refused_if_the_call_may_write[X-RPC-MAX-OCCLUSION]",
        returning("pipeline.serve.handlers", "check_refused", None),
    ),
    "empty-is-a-value": Mutant(
        "test_requests.py::test_parameters_an_empty_value_is_an_absent_one",
        lambda: replaced(
            "pipeline.serve.request_parsing",
            "parse_qsl",
            lambda parse: lambda text, **how: parse(text, keep_blank_values=True, **how),
        ),
    ),
    "least-size-of-the-header-ignored": Mutant(
        "test_requests.py::test_parameters_the_query_has_the_least_size_unless_it_is_absent_or_minus_1",
        lambda: replaced(
            "pipeline.serve.request_parsing",
            "_min_size",
            lambda _: lambda _request, query: query.number("min-size", 1e6) or 0.0,
        ),
    ),
    "merged-id-instead-of-the-new": Mutant(
        "test_named_person.py::test_parameters_an_inserted_face_is_merged[merge-with]",
        answered(lambda face: dataclasses.replace(face, new_id=face.new_id and face.person.root.person_id)),
    ),
    "root-id-left-out": Mutant(
        "test_named_person.py::test_parameters_an_inserted_face_is_merged[X-RPC-ROOT-PERSON-ID]",
        around(
            "pipeline.serve.serializer", "_similar", lambda one: {k: v for k, v in one.items() if k != "rootPersonId"}
        ),
    ),
    "short-ids-of-any-length": Mutant(
        "test_records.py::test_a_listing_accepts_what_its_description_says[/people]",
        lambda: replaced("pipeline.serve.listing", "_text", lambda _: lambda query, name: query.text(name)),
    ),
    "nearest-face-ignored": Mutant(
        "test_named_person.py::test_parameters_header_metadata_belong_to_the_nearest_face",
        asked(closest_x=None, closest_y=None),
    ),
    "update-false-updates": Mutant(
        "test_updates.py::test_4_2_rule_6_update_false_changes_neither[same names]",
        asked(update=True),
    ),
    "insert-false-inserts": Mutant(
        "test_insertion.py::test_4_1_insert_false_inserts_nothing[false]",
        asked(insert=True),
    ),
    "quality-override-ignored": Mutant(
        "test_insertion.py::test_4_2_rule_5_threshold_0_and_no_quality_force_an_insertion",
        asked(min_cpq=None, min_fsq=None, min_fcq=None),
    ),
    "quality-not-checked": Mutant(
        "test_insertion.py::test_4_2_rule_4_insufficient_quality_is_rejected[contrast]",
        returning("pipeline.people.posts", "failed_measures", ()),
    ),
    "stranger-has-a-person-id": Mutant(
        "test_recognition.py::test_4_3_rule_2_only_an_identified_face_has_an_identity",
        stranger_gets_the_first_person,
    ),
    "landmarks-of-the-image": Mutant(
        "test_answers.py::test_2_3_landmarks_are_relative_to_the_face_box",
        around("pipeline.serve.serializer", "Serializer._face", landmarks_of_the_image),
    ),
    "child-instead-of-root": Mutant(
        "test_changes.py::test_identities_recognition_answers_with_the_root",
        recognised_as_the_child,
    ),
    "eleventh-directory": Mutant(
        "test_accounts.py::test_8_at_most_10_directories_per_account",
        constant("pipeline.store.catalog.directories", "MAX_DIRECTORIES", 11),
    ),
    "null-instead-of-absent": Mutant(
        "test_records.py::test_record_has_all_its_keys",
        lambda: replaced("pipeline.serve.serializer", "_present", lambda _: dict),
    ),
    "score-rounded": Mutant(
        "test_recognition.py::test_scores_one_function_everywhere",
        answered(lambda face: dataclasses.replace(face, score=None if face.score is None else round(face.score, 4))),
    ),
    "smallest-face-first": Mutant(
        "test_answers.py::test_requests_largest_face_first",
        answered(lambda face: face, lambda faces: faces[::-1]),
    ),
    "every-face-inserted": Mutant(
        "test_insertion.py::test_requests_only_the_largest_face_is_inserted",
        asked(insert_all=True),
    ),
    "delete-leaves-the-record": Mutant(
        "test_changes.py::test_delete_takes_everything_of_the_person",
        ignoring("delete"),
    ),
    "unmerge-leaves-the-merge": Mutant(
        "test_changes.py::test_identities_unmerge_restores_exactly",
        ignoring("unmerge"),
    ),
    "error-without-verb": Mutant(
        "test_requests.py::test_requests_every_error_has_the_one_shape",
        around("pipeline.serve.responses", "error_body", lambda body: {k: v for k, v in body.items() if k != "verb"}),
    ),
    "filters-ignored": Mutant(
        "test_records.py::test_a_script_that_deletes_what_a_filter_answers_deletes_nobody_else",
        lambda: replaced("pipeline.serve.listing", "_filter", lambda _: lambda _query: lambda _record: True),
    ),
    "iv-at-the-end": Mutant(
        "test_images.py::test_4_6_rules_1_to_4_decrypt_the_image",
        around("pipeline.people.service", "IdentityService.stored_object", iv_at_the_end),
        hosting="cloud",
    ),
    "one-iv-for-all": Mutant(
        "test_images.py::test_4_6_rule_1_every_image_has_an_iv_of_its_own",
        constant("pipeline.store.files.encryption", "os", SimpleNamespace(urandom=bytes)),
        hosting="cloud",
    ),
    "cloud-images-in-the-clear": Mutant(
        "test_images.py::test_4_5_rule_3_cloud_downloads_are_encrypted",
        objects_in_the_clear,
        hosting="cloud",
    ),
}
