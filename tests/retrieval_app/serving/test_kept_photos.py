"""Photos that can be asked with again: kept up to a size, and shared by the processes of a server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from retrieval_app.serving.kept_photos import KeptPhotos
from retrieval_app.serving.photos import Photo

VECTOR = np.array([0.6, 0.8], dtype=np.float32)


def make_photo(token: str, *, picture_bytes: int = 92) -> Photo:
    return Photo(token, f"{token}.jpg", 3, 2, b"x" * picture_bytes, VECTOR, "0" * 64)


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "photos.sqlite" if request.param == "file" else None


def test_a_photo_comes_back_as_it_was(path: Path | None) -> None:
    kept, photo = KeptPhotos(1000, path=path), make_photo("a")
    kept.put(photo)
    found = kept.get("a")
    assert found is not None
    assert (found.token, found.name, found.width, found.height) == ("a", "a.jpg", 3, 2)
    assert (found.picture, found.model_sha256) == (photo.picture, photo.model_sha256)
    np.testing.assert_array_equal(found.vector, VECTOR)
    assert found.vector.dtype == np.float32
    assert kept.get("b") is None


def test_those_that_were_not_used_for_longest_are_forgotten(path: Path | None) -> None:
    kept = KeptPhotos(300, path=path, noted_s=0)  # three of 92 and 8 bytes
    for token in "abc":
        kept.put(make_photo(token))
    assert kept.get("a") is not None
    kept.put(make_photo("d"))
    assert [token for token in "abcd" if kept.get(token) is not None] == ["a", "c", "d"]
    assert len(kept) == 3
    kept.put(make_photo("e", picture_bytes=400))  # larger than all that there is room for
    assert len(kept) == 0


def test_what_one_process_keeps_another_finds(tmp_path: Path) -> None:
    one, other = (KeptPhotos(1000, path=tmp_path / "photos.sqlite") for _ in range(2))
    one.put(make_photo("a"))
    assert other.get("a") is not None
    assert len(other) == 1
    other.put(make_photo("b", picture_bytes=980))
    assert one.get("a") is None
