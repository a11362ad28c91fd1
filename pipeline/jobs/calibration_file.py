"""The file of `facepipe calibrate --out` and `--calibration`: JSON with the calibration and what it is valid for.

That is the weights (by hash), the crop settings and the subtracted centre: distances change their meaning with any of
these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pipeline.config import AREA
from pipeline.errors import BadValue, CalibrationInvalid, UnknownKey
from pipeline.matching.calibration import Calibration
from pipeline.store import Folder, StoreIdentity, disk_errors
from pipeline.texts import path_text

NO_CALIBRATION: Final = "none"
_FORMAT: Final = 1
# Embeddings hardly depend on which files are read, which faces are found and (docs/speed.md) the mode. The centre's
# hash is more exact than `embed`.
_OTHER_SETTINGS: Final = frozenset({"decode", "detect", "embed", "mode"})


def write_calibration(file: Path, calibration: Calibration, identity: StoreIdentity, fit: Mapping[str, Any]) -> None:
    """Writes `calibration`, fitted on embeddings of `identity`'s model; `fit` is for people only.

    Raises StoreFull or StoreUnwritable if the folder cannot be written.
    """
    content = {
        "facepipe_calibration": _FORMAT,
        "weights": identity.weights,
        "weights_sha256": identity.weights_sha256,
        "output_settings": _relevant(identity.output_settings),
        "centre_sha256": identity.preprocessing.get("centre_sha256"),
        "calibration": calibration.as_dict(),
        "fit": dict(fit),
    }
    with disk_errors(file.absolute().parent):
        file.absolute().parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    Folder(file.absolute().parent).write(file.name, text.encode("utf-8", "backslashreplace"), "calibration")


def read_calibration(
    file: Path | str, weights_sha256: str, output_settings: Mapping[str, Any], preprocessing: Mapping[str, Any]
) -> Calibration:
    """Reads the calibration in `file`; "none": no calibration.

    Raises CalibrationInvalid if the file has none, or one for other weights, settings or preprocessing.
    """
    if str(file) == NO_CALIBRATION:
        return Calibration(note="none: distances are the model's own")
    file = Path(file)
    try:
        content = json.loads(file.read_text("utf-8"))
    except OSError as exc:
        raise _invalid(file, f"it cannot be read ({exc.strerror})") from exc
    except (ValueError, RecursionError) as exc:
        raise _invalid(file, "it is not JSON as `facepipe calibrate --out FILE` writes it") from exc
    if not isinstance(content, dict) or content.get("facepipe_calibration") != _FORMAT:
        raise _invalid(file, f"it is not a facepipe calibration of format {_FORMAT}")
    if content.get("weights_sha256") != weights_sha256:
        other = f"{content.get('weights')} ({content.get('weights_sha256')})"
        raise _invalid(file, f"it was fitted for the weights {other}, and these are {weights_sha256}")
    fit_settings, own_settings = content.get("output_settings"), _relevant(output_settings)
    if not isinstance(fit_settings, dict) or _relevant(fit_settings) != own_settings:
        raise _invalid(file, f"it was fitted with {fit_settings}, not {own_settings}")
    fit_centre, own_centre = content.get("centre_sha256"), preprocessing.get("centre_sha256")
    if fit_centre != own_centre:
        raise _invalid(file, f"it was fitted with {_centre(fit_centre)}, not {_centre(own_centre)}")
    if not isinstance(content.get("calibration"), dict):
        raise _invalid(file, "it holds no calibration")
    try:
        return Calibration.from_dict(content["calibration"])
    except (BadValue, UnknownKey) as exc:
        raise _invalid(file, str(exc)) from exc


def _relevant(output_settings: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in output_settings.items() if key not in _OTHER_SETTINGS}
    align = kept.get("align")
    # Older files and stores do not name the resampling.
    return {**kept, "align": {"resampling": AREA, **align}} if isinstance(align, dict) else kept


def _centre(sha256: object) -> str:
    return "embeddings that are not centred" if sha256 is None else f"embeddings less the centre {sha256}"


def _invalid(file: Path, detail: str) -> CalibrationInvalid:
    return CalibrationInvalid(path=path_text(file), detail=detail.rstrip("."))
