"""How many annotated faces of group photos the detector finds, and how often it is wrong.

    python scripts/bench/bench_detection.py --boxes FOLDER/groups-with-boxes

FOLDER holds photos and their boxes as imglab writes them. Boxes of 40 px and more count, as the photos are annotated
from there on; beside it all that there are. Asserts that a second look at one photo at a time finds the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bench_common import result, write_result

from pipeline.config import Settings
from pipeline.evaluation.detection.annotations import read_boxes
from pipeline.evaluation.detection.detections import load_detector
from pipeline.evaluation.detection.report import DetectionRequest, report_detection
from pipeline.extraction.images.batch import ImageBatch
from pipeline.extraction.images.decode import decode_image
from pipeline.types import SilentProgress

LEAST_PX = (40, 0)


def measure(folder: Path, min_px: float) -> dict[str, Any]:
    report = report_detection(DetectionRequest([folder], None, Settings(), min_px), SilentProgress())
    assert not report.skipped.as_dict()["skipped"], report.skipped
    found = report.result
    return {
        "images": found.images,
        "faces": found.faces,
        "found": found.found,
        "false_alarms": found.false_alarms,
        "detections_to_ignore": found.ignored_detections,
        "recall": found.recall,
        "precision": found.precision,
        "average_precision": found.average_precision,
    }


def faces_one_by_one(folder: Path) -> int:
    detector, settings = load_detector(Settings()), Settings().decode
    photos = (decode_image(each.file.read_bytes(), settings).pixels for each in read_boxes([folder], None))
    return sum(len(detector(ImageBatch([pixels]))) for pixels in photos)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boxes", type=Path, required=True)
    args = parser.parse_args()
    figures = {f"from_{least}_px": measure(args.boxes, least) for least in LEAST_PX}
    every = figures["from_0_px"]
    print(figures)
    seen = every["found"] + every["false_alarms"] + every["detections_to_ignore"]
    assert seen == faces_one_by_one(args.boxes), "photos alone give other faces"
    print(write_result(result("detection", {"photos": "groups-with-boxes"}, {}, figures)))


if __name__ == "__main__":
    main()
