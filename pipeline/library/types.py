"""The types of the library's arguments and answers."""

from pipeline.config import MatchSettings, RegroupSettings
from pipeline.errors import ImageRejected
from pipeline.evaluation.calibration import CalibrationReport
from pipeline.evaluation.clustering import Agreement, ClusteringResult
from pipeline.evaluation.pairs import PairsResult
from pipeline.evaluation.report import Report
from pipeline.evaluation.sweep import SweptRow
from pipeline.extraction.images.given import GivenImage
from pipeline.jobs.people import LoggedCorrection, People, PersonRow, TwiceOnPhoto, UnassignedFace
from pipeline.jobs.run_report import RunReport
from pipeline.library.extractor import Face
from pipeline.library.opened import Matrix
from pipeline.matching.calibration import Calibration
from pipeline.store import (
    Candidate,
    ChangeEntry,
    ChangesPage,
    CorrectionAnswer,
    FaceAnswer,
    Regrouping,
    Suggestion,
    Suggestions,
)
