"""Lists of pairs: both of LFW's formats, CSV, and everything that can be wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import PairsInvalid, SourceMissing
from pipeline.evaluation.pair_lists import (
    REPEATED,
    WITH_ITSELF,
    is_pair_list,
    photos_of_people,
    read_pair_list,
)
from pipeline.evaluation.report import Skipped

VIEW_1 = "1\nAda_Lovelace\t1\t3\nAda_Lovelace\t2\tMary_Shelley\t1\n"
VIEW_2 = "2\t1\nA\t1\t2\nA\t1\tB\t1\nB\t1\t2\nA\t2\tB\t12\n"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "pairs.txt"


class TestLfw:
    def test_reads_both_kinds(self, written: Path) -> None:
        written.write_text(VIEW_1)
        genuine, impostor = read_pair_list(written, Path("/lfw"), Skipped()).pairs
        ada = "/lfw/Ada_Lovelace/Ada_Lovelace_000"
        assert (genuine.first, genuine.second, genuine.same) == (f"{ada}1.jpg", f"{ada}3.jpg", True)
        assert (impostor.first, impostor.second, impostor.same) == (
            f"{ada}2.jpg",
            "/lfw/Mary_Shelley/Mary_Shelley_0001.jpg",
            False,
        )

    def test_reads_folds(self, written: Path) -> None:
        written.write_text(VIEW_2)
        listed = read_pair_list(written, None, Skipped())
        assert [(pair.fold, pair.same) for pair in listed.pairs] == [
            (0, True),
            (0, False),
            (1, True),
            (1, False),
        ]
        assert listed.pairs[3].second == str(written.parent / "B" / "B_0012.jpg")
        assert listed.people[str(written.parent / "A" / "A_0002.jpg")] == "A"

    @pytest.mark.parametrize(
        ("text", "at"),
        [
            ("", "line 1"),
            ("1\nA 1 2\n", "line 1 announces 2 pairs, but 1 follow"),
            ("x\nA 1 2\nA 1 B 1\n", "line 1"),
            ("0\n", "line 1"),
            ("1 2 3\n", "line 1"),
            ("1" * 5000, "line 1"),
            (f"1\nA {'1' * 5000} 2\nA 1 B 1", 'line 2: "A 1{78}" should be'),
            ("1\nA 1 2\nA 1\n", "line 3"),
            ("1\nA one 2\nA 1 B 1", "line 2"),
            ("1\nA 1 B 1\nA 1 2\n", 'line 2: "A 1 B 1" should be "Name i j"'),
            ("1\nA 1 2\nA 1 3\n", "line 3"),
            ("1\nA 1 2\nA 1 A 2\n", "line 3: A is listed as two people"),
            (VIEW_1 + "A 1 2\n", "line 1 announces 2 pairs, but 3 follow"),
        ],
    )
    def test_refuses_what_is_no_pairs_file(self, written: Path, text: str, at: str) -> None:
        written.write_text(text)
        with pytest.raises(PairsInvalid, match=at) as caught:
            read_pair_list(written, None, Skipped())
        assert "pairs.txt" in str(caught.value)

    def test_missing_and_unreadable_files(self, tmp_path: Path) -> None:
        with pytest.raises(SourceMissing):
            read_pair_list(tmp_path / "none.txt", None, Skipped())
        with pytest.raises(PairsInvalid, match="cannot be read"):
            read_pair_list(tmp_path, None, Skipped())
        (tmp_path / "binary.txt").write_bytes(b"1\n\xff\xfe 1 2\n")
        with pytest.raises(PairsInvalid, match="UTF-8"):
            read_pair_list(tmp_path / "binary.txt", None, Skipped())

    def test_a_photo_in_another_format_is_found(self, written: Path, tmp_path: Path) -> None:
        written.write_text(VIEW_1)
        (tmp_path / "lfw" / "Ada_Lovelace").mkdir(parents=True)
        (tmp_path / "lfw" / "Ada_Lovelace" / "Ada_Lovelace_0003.png").touch()
        listed = read_pair_list(written, tmp_path / "lfw", Skipped())
        assert [Path(listed.pairs[0].first).name, Path(listed.pairs[0].second).name] == [
            "Ada_Lovelace_0001.jpg",
            "Ada_Lovelace_0003.png",
        ]
        assert listed.files[listed.pairs[0].second] == tmp_path / "lfw" / "Ada_Lovelace" / "Ada_Lovelace_0003.png"

    def test_a_name_too_long_for_a_file_is_a_photo_that_is_not_there(self, written: Path, tmp_path: Path) -> None:
        written.write_text(VIEW_1.replace("Ada_Lovelace", "A" * 300))
        listed = read_pair_list(written, tmp_path, Skipped())
        files, _ = photos_of_people(listed, tmp_path)
        assert files == listed.files

    def test_every_photo_of_the_people(self, written: Path, tmp_path: Path) -> None:
        written.write_text(VIEW_1)
        for name, count in (("Ada_Lovelace", 4), ("Mary_Shelley", 2), ("Somebody_Else", 3)):
            (tmp_path / name).mkdir()
            for number in range(1, count + 1):
                (tmp_path / name / f"{name}_{number:04d}.jpg").touch()
        (tmp_path / "Ada_Lovelace" / "notes.txt").touch()
        files, people = photos_of_people(read_pair_list(written, tmp_path, Skipped()), tmp_path)
        assert len(files) == 6
        assert sorted(people.values()) == ["Ada_Lovelace"] * 4 + ["Mary_Shelley"] * 2
        assert files.keys() == people.keys()


class TestCsv:
    def test_paths_start_at_the_images(self, tmp_path: Path) -> None:
        file = tmp_path / "pairs.CSV"
        file.write_text("note, Path_A ,path_b,SAME\nx,a/1.jpg,../2.jpg,1\ny,/abs/3.png,a/1.jpg,No\n", "utf-8-sig")
        listed = read_pair_list(file, tmp_path / "photos", Skipped())
        assert [(pair.first, pair.second, pair.same) for pair in listed.pairs] == [
            (str(tmp_path / "photos/a/1.jpg"), str(tmp_path / "2.jpg"), True),
            ("/abs/3.png", str(tmp_path / "photos/a/1.jpg"), False),
        ]
        assert ({pair.fold for pair in listed.pairs}, listed.people) == ({0}, {})

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", '"path_a" once'),
            ("path_a,path_b\n", '"same" once'),
            ("path_a,path_b,same,same\n", '"same" once'),
            ("path_a,path_b,same\na,b,maybe\n", 'line 2: same is "maybe"'),
            ("path_a,path_b,same\na,b\n", "line 2 has 2 fields"),
            ("path_a,path_b,same\na,,1\n", "line 2: path_b is empty"),
            ('path_a,path_b,same\n"a,b,1\n', "cannot be read"),
            ("path_a,path_b,same\na,b,1\nb,a,0\n", "as one person and as two"),
            ("path_a,path_b,same\na,./a,0\n", "photo of two people"),
        ],
    )
    def test_refuses(self, tmp_path: Path, text: str, message: str) -> None:
        file = tmp_path / "pairs.csv"
        file.write_text(text)
        with pytest.raises(PairsInvalid, match=message):
            read_pair_list(file, None, Skipped())

    def test_what_says_nothing_is_counted(self, tmp_path: Path) -> None:
        file = tmp_path / "pairs.csv"
        file.write_text("path_a,path_b,same\na,b,1\nb,a,yes\na,a,1\na,c,0\na,b,true\n\n")
        skipped = Skipped()
        listed = read_pair_list(file, None, skipped)
        assert len(listed.pairs) == 2
        assert skipped.counts == {REPEATED: 2, WITH_ITSELF: 1}


def test_a_list_of_pairs_is_told_from_labels(tmp_path: Path) -> None:
    for name, text in (("pairs.csv", "path_a,path_b,same\n"), ("labels.csv", "path,name\n"), ("lfw.txt", "1\n")):
        (tmp_path / name).write_text(text)
    assert is_pair_list(tmp_path / "pairs.csv")
    assert is_pair_list(tmp_path / "lfw.txt")
    assert not is_pair_list(tmp_path / "labels.csv")
    assert not is_pair_list(tmp_path)
