"""Annotated boxes in the three ways they are written, and everything that can be wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import BoxesInvalid, SourceMissing
from pipeline.evaluation.annotations import AnnotatedImage, read_boxes

IMGLAB = """<?xml version='1.0' encoding='ISO-8859-1'?>
<?xml-stylesheet type='text/xsl' href='image_metadata_stylesheet.xsl'?>
<dataset><name>Faces</name><images>
  <image file='a.jpg' width='500' height='332'>
    <box top='181' left='274' width='52' height='53'/>
    <box top='1' left='2' width='3' height='4' ignore='1'><label>blurred</label></box>
  </image>
  <image file='sub/b.jpg'/>
</images></dataset>
"""
VOC = """<annotation><folder>x</folder><filename>a.jpg</filename><size><width>500</width></size>
<object><name>face</name><difficult>0</difficult>
<bndbox><xmin>1</xmin><ymin>11</ymin><xmax>20</xmax><ymax>40</ymax></bndbox></object>
<object><name>face</name><difficult>1</difficult>
<bndbox><xmin>50</xmin><ymin>50</ymin><xmax>60</xmax><ymax>60</ymax></bndbox></object></annotation>
"""


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    return file


def said(images: list[AnnotatedImage]) -> dict[str, list[tuple[list[float], bool]]]:
    return {i.path: list(zip(i.boxes.tolist(), i.ignored.tolist(), strict=True)) for i in images}


def test_imglab(tmp_path: Path) -> None:
    found = read_boxes([written(tmp_path, "boxes.xml", IMGLAB)], None)
    assert said(found) == {
        str(tmp_path / "a.jpg"): [([274, 181, 326, 234], False), ([2, 1, 5, 5], True)],
        str(tmp_path / "sub" / "b.jpg"): [],
    }
    assert found[0].file == tmp_path / "a.jpg"


def test_voc_counts_pixels_from_one_and_includes_the_last(tmp_path: Path) -> None:
    found = read_boxes([written(tmp_path, "a.xml", VOC)], tmp_path / "images")
    assert said(found) == {str(tmp_path / "images" / "a.jpg"): [([0, 10, 20, 40], False), ([49, 49, 60, 60], True)]}


def test_a_folder_of_voc_files(tmp_path: Path) -> None:
    written(tmp_path, "notes/b.xml", VOC.replace("a.jpg", "b.jpg"))
    written(tmp_path, "notes/a.xml", VOC)
    written(tmp_path, "notes/c.xml", "<annotation><filename>c.jpg</filename></annotation>")
    found = read_boxes([tmp_path / "notes"], tmp_path)
    assert [(Path(image.path).name, len(image.boxes)) for image in found] == [("a.jpg", 2), ("b.jpg", 2), ("c.jpg", 0)]


def test_csv(tmp_path: Path) -> None:
    text = "Path,x1,y1,x2,y2,ignore,by\na.jpg,1,2,3.5,4,0,me\nb.jpg,,,,,,me\na.jpg,5,6,7,8,1,me\n/c/d.jpg,1,1,2,2,,me\n"
    assert said(read_boxes([written(tmp_path, "boxes.csv", text)], tmp_path / "photos")) == {
        str(tmp_path / "photos" / "a.jpg"): [([1, 2, 3.5, 4], False), ([5, 6, 7, 8], True)],
        str(tmp_path / "photos" / "b.jpg"): [],
        "/c/d.jpg": [([1, 1, 2, 2], False)],
    }


def test_several_files_are_one_set(tmp_path: Path) -> None:
    first = written(tmp_path, "one.xml", IMGLAB)
    second = written(tmp_path, "two.csv", "path,x1,y1,x2,y2\nz.jpg,1,2,3,4\n")
    assert [Path(image.path).name for image in read_boxes([first, second], None)] == ["a.jpg", "b.jpg", "z.jpg"]
    with pytest.raises(BoxesInvalid, match=r"a\.jpg is annotated in another file"):
        read_boxes([first, written(tmp_path, "three.xml", VOC)], None)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SourceMissing):
        read_boxes([tmp_path / "nothing.xml"], None)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{}", "are .xml or .csv files"),
        ("a.xml", "<dataset><image", "cannot be read as XML"),
        ("a.xml", "", "cannot be read as XML"),
        ("a.xml", "<html/>", "its root is <html>"),
        ("a.xml", "<dataset><images/></dataset>", "annotates no image"),
        ("a.xml", "<dataset><image/></dataset>", "<image> has no file"),
        ("a.xml", "<dataset><image file='a'><box top='1' left='1' width='1'/></image></dataset>", "has no height"),
        (
            "a.xml",
            "<dataset><image file='a'><box top='1' left='1' width='0' height='9'/></image></dataset>",
            "has no area",
        ),
        (
            "a.xml",
            "<dataset><image file='a'><box top='1' left='x' width='2' height='9'/></image></dataset>",
            "could not convert",
        ),
        (
            "a.xml",
            "<dataset><image file='a'><box top='1' left='nan' width='2' height='9'/></image></dataset>",
            "finite numbers",
        ),
        (
            "a.xml",
            "<dataset><image file='a'><box top='1' left='1' width='2' height='9' ignore='perhaps'/></image></dataset>",
            "neither 1 nor 0",
        ),
        ("a.xml", IMGLAB.replace("sub/b.jpg", "./a.jpg"), "with faces and without any"),
        ("a.xml", VOC.replace("a.jpg", ""), "<annotation> has no filename"),
        ("a.xml", VOC.replace("<xmin>1</xmin>", ""), "has no bndbox/xmin"),
        ("a.csv", "path,x1,y1,x2\na.jpg,1,2,3\n", "has no column y2"),
        ("a.csv", "path,x1,y1,x2,y2\n,1,2,3,4\n", "line 2 names no image"),
        ("a.csv", "path,x1,y1,x2,y2\na.jpg,1,2,,4\n", "line 2"),
        ("a.csv", "path,x1,y1,x2,y2\na.jpg,3,2,1,4\n", "has no area"),
        ("a.csv", "path,x1,y1,x2,y2\na.jpg,0,0,1e39,1e39\n", "finite numbers up to"),
        ("a.csv", "path,x1,y1,x2,y2\na.jpg,1,2,3,4\nb/../a.jpg,1,2,3,4\n", "the same box twice"),
        ("a.csv", "path,x1,y1,x2,y2\na.jpg,,,,\na.jpg,1,2,3,4\n", "with faces and without any"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(BoxesInvalid, match=message) as caught:
        read_boxes([written(tmp_path, name, text)], None)
    assert name in str(caught.value)


@pytest.mark.faces
def test_the_groups_with_boxes(faces_dir: Path) -> None:
    folder = faces_dir / "groups-with-boxes"
    found = read_boxes([folder / "training.xml", folder / "testing.xml"], None)
    assert sum(len(image.boxes) for image in found) == 43
    assert all(image.file.exists() for image in found)
