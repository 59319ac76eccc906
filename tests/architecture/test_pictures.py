"""The pictures of the page in the documentation."""

import json
import tomllib

from tests.documents import ROOT


def test_the_pictures_of_the_page_are_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    pictures = ROOT / "docs" / "pictures"
    made = json.loads((pictures / "made.json").read_text())
    shown = {path.name for pattern in ("*-page.jpg", "clean-*.jpg", "*.webp") for path in pictures.glob(pattern)}
    assert {name: made.get(name) for name in {*shown, *made}} == dict.fromkeys(made, version), "`make pictures`"
    assert all((pictures / name).exists() for name in made)
