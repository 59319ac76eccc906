"""What the tests in a browser share, and the server that is attacked."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.page_browser", "tests.serving_server")

from tests.page_browser import browser, decisions, open_visit, page_gallery, page_server, visit  # noqa: E402
from tests.serving_server import gallery, server  # noqa: E402

__all__ = ["browser", "decisions", "gallery", "open_visit", "page_gallery", "page_server", "server", "visit"]
