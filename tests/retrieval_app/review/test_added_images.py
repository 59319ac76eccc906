import hashlib
import io
import os
import time
from pathlib import Path

import pytest

from index.errors import ImageError, InputError
from retrieval_app.review.added_images import clear_incoming, store_image
from tests.conftest import draw_image


def encode(kind: str, *, seed: int = 0, size: tuple[int, int] = (64, 48)) -> bytes:
    file = io.BytesIO()
    draw_image((120, 90, 30), seed=seed, size=size).save(file, format=kind)
    return file.getvalue()


def store(gallery: Path, data: bytes, *, name: str = "photo.jpg", label: str | None = None) -> str:
    return store_image(gallery, data, name=name, label=label, max_pixels=10_000)


def path_of(gallery: Path, image: str) -> Path:
    return gallery / "annotations" / "added" / image


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(("kind", "extension"), [("JPEG", "jpg"), ("WEBP", "webp"), ("TIFF", "tif")])
def test_the_name_comes_from_the_content_alone(tmp_path: Path, kind: str, extension: str) -> None:
    data = encode(kind)
    image = store(tmp_path, data, name="../../etc/passwd\n.svg")
    assert image == f"{hashlib.sha256(data).hexdigest()}.{extension}"
    assert path_of(tmp_path, image).read_bytes() == data
    assert files_of(tmp_path) == [f"annotations/added/{image}"]


def test_an_image_with_a_label_lies_in_the_folder_of_the_label(tmp_path: Path) -> None:
    image = store(tmp_path, encode("PNG"), label=" O'Neill & 漢字; $(rm) ")
    assert path_of(tmp_path, image).parent == tmp_path / "annotations" / "added" / "O'Neill & 漢字; $(rm)"
    assert image.startswith("O'Neill & 漢字; $(rm)/")


def test_a_label_that_is_no_plain_name_of_a_folder_is_refused(tmp_path: Path) -> None:
    for label in (" ", ".", "..", "a/b", "/etc", "a\\b", ".hidden", "a\0b", "a\nb", "a\ud800", "漢" * 86):
        with pytest.raises(InputError):
            store(tmp_path, encode("PNG"), label=label)
    assert files_of(tmp_path) == []


def test_a_label_in_other_case_of_the_same_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS and Windows: here a link is the second name, and a listing has one."""
    folder = path_of(tmp_path, store(tmp_path, encode("PNG"), label="Cats")).parent
    folder.with_name("cats").symlink_to(folder)
    monkeypatch.setattr("os.listdir", lambda _: ["Cats"])
    store(tmp_path, encode("PNG", seed=1), label="Cats")
    with pytest.raises(InputError, match="the label cats is the label Cats; use Cats"):
        store(tmp_path, encode("PNG"), label="cats")


def test_what_cannot_be_decoded_wholly_or_is_too_large_is_not_kept(tmp_path: Path) -> None:
    for data, reason in (
        (b"", "empty-file"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not-an-image"),
        (encode("JPEG")[:-200], "corrupt"),
        (encode("PNG")[: len(encode("PNG")) // 2], "corrupt"),
        (encode("PNG", size=(200, 51)), "too-many-pixels"),
    ):
        with pytest.raises(ImageError) as caught:
            store(tmp_path, data)
        assert caught.value.reason == reason
    assert files_of(tmp_path) == []


def test_the_same_bytes_are_kept_once_and_a_damaged_file_is_mended(tmp_path: Path) -> None:
    data = encode("PNG")
    image = store(tmp_path, data)
    path = path_of(tmp_path, image)
    written = path.stat().st_mtime_ns
    assert store(tmp_path, data, name="other") == image
    assert path.stat().st_mtime_ns == written
    path.write_bytes(data[:10])
    store(tmp_path, data)
    assert path.read_bytes() == data


def test_only_old_remains_of_writing_are_cleared_and_nothing_that_others_made(tmp_path: Path) -> None:
    clear_incoming(tmp_path)
    incoming = tmp_path / "annotations" / "incoming"
    incoming.mkdir(parents=True)
    old, new = "0" * 32, "1" * 32
    for name, age in ((old, 7200), (f"{old}.tmp", 7200), (new, 60), ("holiday.jpg", 7200), (f"{old}.jpg", 7200)):
        (incoming / name).touch()
        os.utime(incoming / name, (time.time() - age,) * 2)
    clear_incoming(tmp_path)
    assert sorted(os.listdir(incoming)) == sorted([f"{old}.jpg", new, "holiday.jpg"])
