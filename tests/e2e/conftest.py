"""What the tests in a browser share, and the server that is attacked."""

from pathlib import Path

import pytest

from index.gallery.gallery import Gallery
from index.writing.build import build_gallery
from tests.conftest import draw_folder
from tests.models import write_two_output_model
from tests.page_browser import browser, decisions, desk, open_visit, page_gallery, page_server, visit
from tests.serving_server import gallery, server

__all__ = ["browser", "decisions", "desk", "gallery", "open_visit", "page_gallery", "page_server", "server", "visit"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder slow."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """A gallery with both outputs, semantic and copy. Not to be written to."""
    folder = tmp_path_factory.mktemp("two")
    model = write_two_output_model(folder / "two.onnx", threshold=0.97)
    build_gallery(model_path=model, sources=[draw_folder(folder / "images")], out=folder / "two")
    return Gallery.open(folder / "two")
