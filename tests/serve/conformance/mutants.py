"""Servers that break one rule each, on purpose: what proves that the conformance tests can fail.

`MUTANTS` names them, each with the test that must notice. `forked_mutant` serves them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

from tests.serve.conformance.mutations import (
    answered,
    any_password,
    around,
    asked,
    constant,
    created_is_ok,
    face_image_of_any_account,
    landmarks_of_the_image,
    marked_new,
    objects_at_rest,
    objects_in_the_clear,
    one_directory_for_all,
    ranking_reversed,
    recognised_as_the_child,
    replaced,
    returning,
    score_rounded,
    stranger_gets_the_first_person,
    without_key,
)


@dataclass(frozen=True)
class Mutant:
    """A rule, how it is broken, and the test that must notice."""

    rule: str
    patch: Callable[[], None]
    test: str  # file::test
    hosting: str = "local"


MUTANTS: dict[str, Mutant] = {
    "threshold-ignored": Mutant(
        "4.1: the threshold overrides the default",
        asked(threshold=None),
        "test_section_4_1.py::test_4_1_threshold_overrides_the_default_for_one_request",
    ),
    "threshold-0-is-the-default": Mutant(
        "4.1: value 0 forces insertion",
        asked(threshold=lambda request: request.threshold or None),
        "test_section_4_1.py::test_4_1_threshold_0_forces_a_new_identity",
    ),
    "identical-image-not-known": Mutant(
        "4.1: an identical image is still matched, even at 0",
        returning("pipeline.matching.references", "IndexView.find_identical", None),
        "test_section_4_1.py::test_4_1_identical_image_is_matched_even_at_threshold_0",
    ),
    "similar-reversed": Mutant(
        "4.3 rule 3: highest first",
        around("pipeline.identities.posts", "most_similar", ranking_reversed),
        "test_section_4_3.py::test_4_3_rule_3_highest_first",
    ),
    "similar-limit-ignored": Mutant(
        "4.3 rule 3: the N most similar",
        asked(similar_limit=lambda request: 1000 if request.similar_limit else 0),
        "test_section_4_1.py::test_4_1_similar_limit_is_the_number_of_identities_for_each_face",
    ),
    "another-account-reads-images": Mutant(
        "2.1: data of different accounts is entirely separate",
        face_image_of_any_account,
        "test_section_2.py::test_2_1_accounts_share_nothing_under_equal_directory_names",
    ),
    "one-directory-for-all": Mutant(
        "2.1: data in different directories is separate",
        one_directory_for_all,
        "test_section_2.py::test_2_1_directories_of_one_account_are_separate",
    ),
    "any-password": Mutant(
        "5 rule 1: the credentials issued for the account",
        any_password,
        "test_section_5.py::test_5_rule_1_a_wrong_password_opens_nothing",
    ),
    "new-id-on-a-match": Mutant(
        "4.2 rule 2: newId is not true on a match",
        answered(marked_new),
        "test_section_4_2.py::test_4_2_rule_2_the_matched_identity_is_returned",
    ),
    "created-is-200": Mutant(
        "decisions: 201 always",
        created_is_ok,
        "test_decided_answers.py::test_requests_status_of_an_insertion_is_201",
    ),
    "update-ignored": Mutant(
        "4.2 rule 6: update=true replaces the reference",
        asked(update=False),
        "test_section_4_2.py::test_4_2_rule_6_update_true_replaces_image_and_metadata",
    ),
    "update-false-updates": Mutant(
        "4.2 rule 6: update=false does not",
        asked(update=True),
        "test_section_4_2.py::test_4_2_rule_6_update_false_changes_neither",
    ),
    "insert-false-inserts": Mutant(
        "4.1: insert=false inserts nothing",
        asked(insert=True),
        "test_section_4_1.py::test_4_1_insert_false_inserts_nothing",
    ),
    "quality-override-ignored": Mutant(
        "4.2 rule 3: or the overrides min-cpq, min-fsq, min-fcq",
        asked(min_cpq=None, min_fsq=None, min_fcq=None),
        "test_section_4_2.py::test_4_2_rule_5_threshold_0_and_no_quality_force_an_insertion",
    ),
    "quality-not-checked": Mutant(
        "4.2 rule 4: insufficient quality is rejected",
        returning("pipeline.identities.posts", "failed_measures", ()),
        "test_section_7_8.py::test_7_rule_1_an_insertion_of_poor_quality_is_rejected",
    ),
    "stranger-has-a-person-id": Mutant(
        "4.3 rule 2: only an identified face has personId",
        stranger_gets_the_first_person,
        "test_section_4_3.py::test_4_3_rule_2_only_an_identified_face_has_an_identity",
    ),
    "landmarks-of-the-image": Mutant(
        "decisions: landmarks are fractions of the face box",
        around("pipeline.serve.serializer", "Serializer._face", landmarks_of_the_image),
        "test_section_2.py::test_2_3_landmarks_are_relative_to_the_face_box",
    ),
    "child-instead-of-root": Mutant(
        "decisions: recognition answers with the root's id and name",
        recognised_as_the_child,
        "test_decided_merging.py::test_identities_recognition_answers_with_the_root",
    ),
    "eleventh-directory": Mutant(
        "8: 10 directories per account",
        constant("pipeline.store.catalog.directories", "MAX_DIRECTORIES", 11),
        "test_section_7_8.py::test_8_at_most_10_directories_per_account",
    ),
    "null-instead-of-absent": Mutant(
        "decisions: a key without a value is absent",
        lambda: replaced("pipeline.serve.serializer", "_present", lambda _: dict),
        "test_decided_listing.py::test_record_has_all_its_keys",
    ),
    "score-rounded": Mutant(
        "decisions: one function everywhere, sent unrounded",
        answered(score_rounded),
        "test_decided_answers.py::test_requests_score_beside_every_person_id",
    ),
    "smallest-face-first": Mutant(
        "decisions: entries largest face first",
        answered(lambda face: face, lambda faces: faces[::-1]),
        "test_decided_answers.py::test_requests_largest_face_first",
    ),
    "every-face-inserted": Mutant(
        "decisions: only the largest may be inserted",
        asked(insert_all=True),
        "test_decided_insertion.py::test_requests_only_the_largest_face_is_inserted",
    ),
    "delete-leaves-the-record": Mutant(
        "decisions: everything of it goes everywhere",
        returning("pipeline.identities.service", "IdentityService.delete_person", None),
        "test_decided_changes.py::test_delete_is_204_then_404",
    ),
    "unmerge-leaves-the-merge": Mutant(
        "decisions: unmerge restores exactly",
        returning("pipeline.identities.service", "IdentityService.unmerge", None),
        "test_decided_merging.py::test_identities_unmerge_restores_exactly",
    ),
    "error-without-verb": Mutant(
        "decisions: the one error shape",
        around("pipeline.serve.responses", "error_body", without_key("verb")),
        "test_decided_errors.py::test_requests_every_error_has_the_one_shape",
    ),
    "iv-at-the-end": Mutant(
        "4.6 rule 1: IV = the first 16 bytes",
        objects_at_rest(lambda data: data[16:] + data[:16]),
        "test_section_4_4.py::test_4_6_rules_1_to_4_decrypt_the_image",
        hosting="cloud",
    ),
    "one-iv-for-all": Mutant(
        "decisions: a random IV per object",
        constant("pipeline.store.files.crypto", "os", SimpleNamespace(urandom=bytes)),
        "test_section_4_4.py::test_4_6_rule_1_every_image_has_an_iv_of_its_own",
        hosting="cloud",
    ),
    "cloud-images-in-the-clear": Mutant(
        "4.5 rule 3: the data is encrypted",
        objects_in_the_clear,
        "test_section_4_4.py::test_4_5_rule_3_cloud_downloads_are_encrypted",
        hosting="cloud",
    ),
}
