"""Copies of pictures: every edit does what it says, to pictures of any size, as the generator says."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from training.data import copies
from training.data.copies import EDITS, draw_copy

NAMES = [edit.__name__ for _, edit in EDITS]  # type: ignore[attr-defined]
KEEPS_SIZE = {"mirror", "recolour", "grey", "blur", "shrink", "write", "stamp", "compress"}


def _picture(width: int = 60, height: int = 40) -> Image.Image:
    """Bright to the right, red below: no two places alike."""
    across, down = np.meshgrid(np.linspace(20, 235, width), np.linspace(20, 235, height))
    return Image.fromarray(np.dstack([down, across, 255 - across]).astype(np.uint8))


def _edit(name: str, picture: Image.Image, *, seed: int = 0) -> Image.Image:
    return getattr(copies, name)(picture, np.random.default_rng(seed))


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (160, 160)])
@pytest.mark.parametrize("name", NAMES)
def test_every_edit_gives_a_picture_of_any_picture(name: str, size: tuple[int, int]) -> None:
    for seed in range(8):
        edited = _edit(name, _picture(*size), seed=seed)
        assert edited.mode == "RGB"
        assert min(edited.size) >= 1
        if name in KEEPS_SIZE:
            assert edited.size == size


@pytest.mark.parametrize("name", NAMES)
def test_every_edit_changes_the_picture_and_leaves_the_original(name: str) -> None:
    picture = _picture()
    before = picture.tobytes()
    changed = [_edit(name, picture, seed=seed) for seed in range(4)]
    assert picture.tobytes() == before
    assert any(edited.size != picture.size or edited.tobytes() != before for edited in changed)


def test_a_cut_keeps_at_least_its_share() -> None:
    areas = [np.prod(_edit("cut", _picture(), seed=seed).size) / (60 * 40) for seed in range(200)]
    assert 0.28 < min(areas) < 0.4
    assert max(areas) > 0.9


def test_a_frame_has_the_whole_picture_in_it() -> None:
    picture = _picture()
    framed = np.asarray(_edit("frame", picture, seed=3))
    windows = np.lib.stride_tricks.sliding_window_view(framed, (40, 60, 3)).reshape(-1, 40, 60, 3)
    assert (windows == np.asarray(picture)).all(axis=(1, 2, 3)).any()


def test_the_generator_alone_decides() -> None:
    picture = _picture()
    first, again, other = (draw_copy(picture, np.random.default_rng(seed)) for seed in (7, 7, 8))
    assert (first.size, first.tobytes()) == (again.size, again.tobytes())
    assert (first.size, first.tobytes()) != (other.size, other.tobytes())
