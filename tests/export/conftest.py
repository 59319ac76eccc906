"""The small run of the training tests, and the model exported from it."""

import pytest

from export.exports import export_run
from export.to_onnx import ExportedModel
from tests.training.conftest import FinishedRun, cache, finished_run, other_pictures, pictures, small_towers

__all__ = ["cache", "finished_run", "other_pictures", "pictures", "small_towers"]


@pytest.fixture(scope="session")
def exported(finished_run: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> ExportedModel:
    """The finished run as a model file. Not to be written to."""
    return export_run(finished_run.path, tmp_path_factory.mktemp("exported") / "model.onnx")
