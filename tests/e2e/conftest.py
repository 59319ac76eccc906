"""What the tests in a browser share."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.page_browser")

from tests.page_browser import browser, decisions, open_visit, page_gallery, page_server, visit  # noqa: E402

__all__ = ["browser", "decisions", "open_visit", "page_gallery", "page_server", "visit"]
