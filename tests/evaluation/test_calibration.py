"""Fitting a calibration, the file that keeps it, and thresholds that are asked for as false match rates."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import CONTRACT_FMR, Settings, load_settings
from pipeline.errors import BadValue, CalibrationInvalid, InputError, StoreMismatch, TooLittleData, UsageError
from pipeline.evaluation.calibration import CalibrationFit, check_rate, fit_calibration
from pipeline.evaluation.pair_distances import score_everybody, score_list, scored_of_list
from pipeline.evaluation.report import Skipped
from pipeline.jobs.calibration_file import read_calibration, write_calibration
from pipeline.jobs.store_identity import resolve_threshold, settings_of_store
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.matching.score import contract_distance
from pipeline.models.registry import weight_set
from pipeline.store.records import StoreIdentity
from tests.evaluation.planted_people import listed, plant, simple_pairs
from tests.identities import planted

TABLE = ((1e-4, 0.4), (1e-3, 0.7), (1e-2, 1.3))
INTERVALS = ((0.3, 0.5), (0.6, 0.8), (1.2, 1.4))


def identity_with(calibration: Calibration) -> StoreIdentity:
    """As it comes out of a store."""
    return dataclasses.replace(
        planted.identity(),
        weights="casia-webface",
        calibration=json.loads(json.dumps(calibration.as_dict())),
        output_settings=json.loads(json.dumps(Settings().output_settings())),
    )


@pytest.fixture(scope="module")
def fit() -> CalibrationFit:
    portraits, names = plant(60, 5, spread=0.7)
    return fit_calibration(score_everybody(portraits, names, 1e-2), 1e-3)


class TestFit:
    def test_the_rate_comes_to_lie_at_the_contracts_threshold(self, fit: CalibrationFit) -> None:
        calibration = fit.calibration("planted", "")
        assert contract_distance(1 - fit.squared_l2 / 2, calibration) ** 2 == pytest.approx(0.54)
        assert dict(fit.thresholds)[1e-3] == pytest.approx(0.54)
        assert calibration.threshold_at(1e-3) == pytest.approx(0.54)

    def test_the_table_holds_what_the_data_allow(self, fit: CalibrationFit) -> None:
        assert fit.impostor_pairs == 60 * 59 // 2 * 25  # 44,250: the rule of 3 allows 1e-4
        assert [rate for rate, _ in fit.thresholds] == [1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2]
        thresholds = [threshold for _, threshold in fit.thresholds]
        assert thresholds == sorted(thresholds)

    def test_each_row_is_the_rate_it_says(self, fit: CalibrationFit) -> None:
        portraits, names = plant(60, 5, spread=0.7)
        scored = score_everybody(portraits, names, 1e-2)
        mapped = 4 * (scored.impostor / 4) ** fit.exponent
        for rate, threshold in fit.thresholds:
            assert np.count_nonzero(mapped <= threshold) == math.floor(rate * len(mapped) + 1e-9)

    def test_at_the_contracts_threshold_the_matcher_keeps_the_rate(self, fit: CalibrationFit) -> None:
        portraits, _ = plant(60, 5, spread=0.7)
        first, second = np.triu_indices(300, k=1)
        first, second = first[first // 5 != second // 5], second[first // 5 != second // 5]
        matcher = Matcher(fit.calibration("planted", ""), 0.54)
        matches = matcher.matches(matcher.distances(portraits.embeddings[first], portraits.embeddings[second]))
        assert np.count_nonzero(matches) == math.floor(1e-3 * fit.impostor_pairs)

    def test_the_interval_holds_the_exponent(self, fit: CalibrationFit) -> None:
        low, high = fit.exponent_interval_95
        assert low < fit.exponent < high
        assert fit.resampled == "people"
        assert fit.fnmr is not None

    def test_a_closer_rate_needs_more_people(self) -> None:
        portraits, names = plant(20, 3, spread=0.7)
        scored = score_everybody(portraits, names, 1e-2)
        assert len(scored.impostor) == 1710
        with pytest.raises(TooLittleData, match=r"2e-04|0\.0002.*15,000 pairs .* there are 1,710"):
            fit_calibration(scored, 2e-4)
        assert fit_calibration(scored, 2e-3).fmr == 2e-3

    def test_without_a_rate_the_lowest_that_can_be_measured_is_taken_and_said(self) -> None:
        portraits, names = plant(20, 3, spread=0.7)
        fit = fit_calibration(score_everybody(portraits, names, 1e-2))
        assert (fit.fmr, fit.impostor_pairs) == (1.8e-3, 1710)
        assert fit.remark is not None
        assert "0.0018 and not 1e-05: that needs 300,000 pairs of different people, and there are 1,710" in fit.remark
        assert fit.calibration("planted", "").threshold_at(1.8e-3) == pytest.approx(0.54)
        assert fit.calibration("planted", "").anchor == "T = 0.54 stands for a false match rate of 0.0018 on planted"

    def test_without_a_rate_enough_people_show_the_contracts(self) -> None:
        portraits, names = plant(160, 5, spread=0.7)
        scored = score_everybody(portraits, names, 1e-2)
        fit = fit_calibration(scored)
        assert (fit.fmr, fit.remark) == (CONTRACT_FMR, None)
        other = fit_calibration(scored, 1e-4).remark
        assert other == "T = 0.54 stands for a false match rate of 0.0001 and not 1e-05"

    def test_too_few_pairs_for_any_rate(self) -> None:
        portraits, names = plant(8, 1, spread=0.7)
        with pytest.raises(TooLittleData, match=r"rate of 0\.1: .* 30 pairs of different people, and there are 28"):
            fit_calibration(score_everybody(portraits, names, 1e-2))

    def test_each_threshold_has_an_interval(self, fit: CalibrationFit) -> None:
        assert all(low <= t <= high for (_, t), (low, high) in zip(fit.thresholds, fit.intervals_95, strict=True))
        anchor = [rate for rate, _ in fit.thresholds].index(fit.fmr)
        cuts = fit.squared_l2_interval_95
        assert fit.intervals_95[anchor] == pytest.approx([4 * (cut / 4) ** fit.exponent for cut in cuts])
        lowest, highest = fit.intervals_95[0], fit.intervals_95[-1]
        assert lowest[1] - lowest[0] > highest[1] - highest[0]  # few pairs say little

    def test_many_photos_of_two_people_are_not_many_people(self) -> None:
        portraits, names = plant(2, 40, spread=0.7)
        with pytest.raises(TooLittleData, match="resamples of the 2 people"):
            fit_calibration(score_everybody(portraits, names, 1e-2), 1e-2)

    def test_names_that_are_wrong_are_suspected(self) -> None:
        portraits, names = plant(30, 2, spread=0.7)
        vectors = portraits.embeddings.copy()
        vectors[0::2] = vectors[0]  # the first photo of everybody is one and the same
        same = dataclasses.replace(portraits, embeddings=vectors)
        with pytest.raises(InputError, match="under two names"):
            fit_calibration(score_everybody(same, names, 1e-2), 1e-2)

    @pytest.mark.parametrize("rate", [math.nan, math.inf, -1e-3, 0.0, 1e-320, 0.2])
    def test_what_is_no_rate_to_ask_for(self, rate: float) -> None:
        with pytest.raises(UsageError, match=r"at least 1e-09 and at most 0\.1"):
            check_rate(rate)

    def test_a_list_of_pairs_serves_too(self) -> None:
        portraits, names = plant(400, 2, spread=0.7)
        scored = score_list(listed(simple_pairs(names), {}), portraits, Skipped())
        fit = fit_calibration(scored_of_list(scored), 1e-2)
        assert (fit.resampled, fit.people, fit.impostor_pairs) == ("pairs", None, 400)


class TestTable:
    @given(st.floats(1e-4, 1e-2))
    def test_between_rows_the_threshold_follows_the_logarithm(self, fmr: float) -> None:
        calibration = Calibration(1.3, "", 1e-3, "", TABLE)
        rates, thresholds = zip(*TABLE, strict=True)
        expected = np.interp(math.log(fmr), np.log(rates), thresholds)
        assert calibration.threshold_at(fmr) == pytest.approx(expected)

    @pytest.mark.parametrize("row", TABLE)
    def test_rows_are_exact(self, row: tuple[float, float]) -> None:
        assert Calibration(1.3, "", 1e-3, "", TABLE).threshold_at(row[0]) == row[1]

    @pytest.mark.parametrize("fmr", [9.9e-5, 1.01e-2])
    def test_beyond_its_rows_it_says_nothing(self, fmr: float) -> None:
        with pytest.raises(BadValue, match=r"fmr:.*from 0\.0001 to 0\.01"):
            Calibration(1.3, "", 1e-3, "", TABLE).threshold_at(fmr)
        with pytest.raises(BadValue, match="no table of rates"):
            Calibration(1.3).threshold_at(1e-3)

    @pytest.mark.parametrize(
        "rows",
        [
            ((1e-3, 0.5), (1e-4, 0.6)),
            ((1e-4, 0.5), (1e-4, 0.5)),
            ((1e-4, 0.6), (1e-3, 0.5)),
            ((0.0, 0.5),),
            ((1.0, 0.5),),
            ((1e-4, 4.5),),
            ((1e-4, math.nan),),
            ((1e-4,),),
            ((1e-4, "0.5"),),
        ],
    )
    def test_a_table_that_is_none_is_refused(self, rows: Any) -> None:
        with pytest.raises(BadValue, match="thresholds"):
            Calibration(1.3, "", 1e-3, "", rows)
        with pytest.raises(BadValue, match="thresholds"):
            Calibration.from_dict({"exponent": 1.3, "thresholds": [list(row) for row in rows]})

    def test_survives_json(self) -> None:
        calibration = Calibration(1.3, "somewhere", 1e-3, "a note", TABLE, INTERVALS)
        assert Calibration.from_dict(json.loads(json.dumps(calibration.as_dict()))) == calibration
        assert Calibration.from_dict({"exponent": 1.3}).thresholds == ()  # of a store made before there were tables
        old = {key: value for key, value in calibration.as_dict().items() if key != "intervals"}
        assert Calibration.from_dict(old).intervals == ()

    @pytest.mark.parametrize("rows", [INTERVALS[:2], ((0.3, 0.5), (0.7, 0.6), (1.2, 1.4)), ((0.3, 4.5),) * 3])
    def test_intervals_that_are_none_are_refused(self, rows: Any) -> None:
        with pytest.raises(BadValue, match="intervals"):
            Calibration.from_dict({"exponent": 1.3, "thresholds": TABLE, "intervals": rows})


def test_the_registrys_table_fits_its_exponent() -> None:
    calibration = weight_set("casia-webface").calibration
    assert calibration.fmr is not None
    assert calibration.threshold_at(calibration.fmr) == pytest.approx(0.54, abs=1e-3)
    assert (calibration.thresholds[0][0], calibration.thresholds[-1][0]) == (1e-6, 1e-2)


class TestThresholdAskedAsARate:
    def test_is_settled_by_the_stores_calibration(self, tmp_path: Path) -> None:
        settings = load_settings(environ={}, flags={"match.threshold": "fmr:1e-3"})
        assert math.isnan(settings.match.threshold)
        settled = settings_of_store(settings, identity_with(Calibration(1.3, "", 1e-3, "", TABLE)), tmp_path)
        assert (settled.match.threshold, settled.match.threshold_fmr) == (0.7, 1e-3)

    def test_is_refused_where_the_calibration_cannot_tell(self, tmp_path: Path) -> None:
        settings = load_settings(environ={}, flags={"match.threshold": "FMR: 1e-5"})
        with pytest.raises(BadValue, match="fmr:1e-05"):
            settings_of_store(settings, identity_with(Calibration(1.3, "", 1e-3, "", TABLE)), tmp_path)
        with pytest.raises(BadValue, match="no table"):
            resolve_threshold(settings, identity_with(Calibration()))

    def test_a_number_in_a_later_place_goes_before_it(self, tmp_path: Path) -> None:
        file = tmp_path / "c.yaml"
        file.write_text("match: {threshold: 'fmr:1e-3'}")
        assert load_settings(file, environ={}).match.threshold_fmr == 1e-3
        number = load_settings(file, environ={"FACEPIPE_MATCH__THRESHOLD": "0.6"}).match
        assert (number.threshold, number.threshold_fmr) == (0.6, None)
        asked = load_settings(file, environ={}, flags={"match.threshold": "fmr:1e-2"}).match
        assert asked.threshold_fmr == 1e-2

    @pytest.mark.parametrize("text", ["fmr:", "fmr:0", "fmr:1", "fmr:-1e-4", "fmr:often", "fmr:nan", "fmr:inf"])
    def test_what_is_no_rate_is_refused(self, text: str) -> None:
        with pytest.raises(BadValue, match="fmr:1e-4"):
            load_settings(environ={}, flags={"match.threshold": text})

    def test_the_rate_is_no_setting_of_its_own(self) -> None:
        with pytest.raises(Exception, match="Unknown setting"):
            load_settings(environ={}, flags={"match.threshold_fmr": "1e-4"})


class TestFile:
    CALIBRATION = Calibration(1.42, "my photos", 1e-3, "squared L2 0.9", TABLE)

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        file = tmp_path / "new" / "calibration.json"
        write_calibration(file, self.CALIBRATION, identity_with(Calibration()), {"people": 60})
        return file

    def test_is_read_back(self, file: Path) -> None:
        assert read_calibration(file, "0" * 64, Settings().output_settings(), {}) == self.CALIBRATION

    def test_other_weights_are_refused(self, file: Path) -> None:
        with pytest.raises(CalibrationInvalid, match="fitted for the weights casia-webface"):
            read_calibration(file, "1" * 64, Settings().output_settings(), {})

    def test_other_crops_are_refused_and_another_detector_is_not(self, file: Path) -> None:
        other = load_settings(environ={}, flags={"align.margin_px": 14})
        with pytest.raises(CalibrationInvalid, match="margin_px"):
            read_calibration(file, "0" * 64, other.output_settings(), {})
        finer = load_settings(environ={}, flags={"detect.min_face_px": 40})
        assert read_calibration(file, "0" * 64, finer.output_settings(), {}) == self.CALIBRATION

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (None, "cannot be read"),
            ("exponent: 1.3", "not JSON"),
            ("[1]", "is not a facepipe calibration of format 1"),
            ('{"facepipe_calibration": 2}', "is not a facepipe calibration of format 1"),
            ("[" * 100_000, "not JSON"),
        ],
    )
    def test_what_is_no_calibration_is_refused(self, tmp_path: Path, text: str | None, message: str) -> None:
        file = tmp_path / "c.json"
        if text is not None:
            file.write_text(text)
        with pytest.raises(CalibrationInvalid, match=message):
            read_calibration(file, "0" * 64, {}, {})

    @pytest.mark.parametrize("calibration", [None, [], "exponent"])
    def test_a_file_without_a_calibration_is_refused(self, file: Path, calibration: Any) -> None:
        file.write_text(json.dumps({**json.loads(file.read_text()), "calibration": calibration}))
        with pytest.raises(CalibrationInvalid, match="holds no calibration"):
            read_calibration(file, "0" * 64, Settings().output_settings(), {})

    @pytest.mark.parametrize(
        "change",
        [
            {"exponent": 9},
            {"exponent": None},
            {"exponent": 10**400},
            {"fmr": 10**400},
            {"slope": 1},
            {"thresholds": 3},
            {"intervals": 3},
            {"intervals": [[0.1, 0.2]]},
            {"thresholds": [[1e-3, 10**400]]},
            {"dataset": 5},
            {"note": None},
        ],
    )
    def test_a_damaged_calibration_is_refused(self, file: Path, change: dict[str, Any]) -> None:
        content = json.loads(file.read_text())
        content["calibration"].update(change)
        file.write_text(json.dumps(content))
        with pytest.raises(CalibrationInvalid):
            read_calibration(file, "0" * 64, Settings().output_settings(), {})

    def test_a_store_keeps_its_own(self, file: Path, tmp_path: Path) -> None:
        asked = load_settings(environ={}, flags={"model.calibration": str(file)})
        assert settings_of_store(asked, identity_with(self.CALIBRATION), tmp_path).model == asked.model
        with pytest.raises(StoreMismatch, match=r"calibration = an exponent of 1\.3.*1\.42"):
            settings_of_store(asked, identity_with(Calibration(1.3)), tmp_path)
        other_table = dataclasses.replace(self.CALIBRATION, thresholds=TABLE[:2])
        with pytest.raises(StoreMismatch, match="its own thresholds"):
            settings_of_store(asked, identity_with(other_table), tmp_path)
        none = load_settings(environ={}, flags={"model.calibration": "none"})
        assert settings_of_store(none, identity_with(Calibration()), tmp_path).model == none.model
        with pytest.raises(StoreMismatch, match="calibration"):
            settings_of_store(none, identity_with(self.CALIBRATION), tmp_path)
