"""HEIC photos, as iPhones write them: read where pillow-heif is installed, and named where it is not."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from index.errors import ImageError
from index.images import decode
from index.images.decode import FIRST_BYTES, decode_here, is_heif
from index.images.image_files import REASONS, check_content, decode_image, read_image
from tests.index.hostile import PHOTO, encode, encode_heic

ORIENTATION = 0x0112


def of_any_brand(data: bytes) -> bytes:
    """The same file, whose first brand is that of the container, which AVIF has too."""
    return data[:8] + b"mif1" + data[12:]


@pytest.mark.parametrize("change", [bytes, of_any_brand])
def test_a_heic_photo_decodes_close_to_what_was_drawn(change: type[bytes]) -> None:
    image = Image.new("RGB", (48, 32), (200, 80, 40))
    pixels = np.asarray(decode_image(change(encode_heic(image)), name="photo.heic", target_side=16))
    assert pixels.shape == (32, 48, 3)
    assert np.abs(pixels.astype(int) - np.asarray(image)).max() <= 6


def test_a_turned_heic_photo_is_upright_once_only() -> None:
    upright = Image.new("RGB", (32, 64), "white")
    upright.paste("red", (0, 0, 32, 32))
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = encode_heic(upright.transpose(Image.Transpose.ROTATE_90), exif=exif.tobytes())
    decoded = decode_image(data, name="photo.heic", target_side=16)
    assert decoded.size == (32, 64)
    red, white = decoded.getpixel((16, 8)), decoded.getpixel((16, 56))
    assert red[1] < 60 < 200 < white[1]


def test_a_heic_photo_with_transparency_is_laid_on_white() -> None:
    seen = decode_image(encode_heic(Image.new("RGBA", (32, 32), (255, 0, 0, 0))), name="photo.heic", target_side=16)
    assert min(seen.getpixel((16, 16))) > 245


def test_a_heic_photo_cut_short_is_corrupt_and_one_of_too_many_pixels_is_not_decoded() -> None:
    data = encode_heic(PHOTO)
    for kept in (0.2, 0.95):
        with pytest.raises(ImageError) as caught:
            decode_image(data[: int(kept * len(data))], name="photo.heic", target_side=16)
        assert caught.value.reason == "corrupt"
    with pytest.raises(ImageError, match="too-many-pixels"):
        decode_here(data, name="photo.heic", target_side=16, max_pixels=100)


def test_nothing_else_is_taken_for_a_heic_photo() -> None:
    for kind in ("AVIF", "JPEG", "PNG", "WEBP"):
        data = encode(PHOTO, kind)
        assert not is_heif(data)
        assert not is_heif(data[:FIRST_BYTES])


def test_without_its_package_a_heic_photo_is_named_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "has_decoder", lambda: False)
    path = tmp_path / "IMG_0001.HEIC"
    path.write_bytes(encode_heic(PHOTO))
    with pytest.raises(ImageError, match=r"HEIC photo.*pip install pillow-heif") as caught:
        read_image(path, target_side=16)
    assert caught.value.reason == "needs-package"
    assert caught.value.reason in REASONS
    with pytest.raises(ImageError, match="pillow-heif"):
        check_content(of_any_brand(encode_heic(PHOTO)), name="photo.heic")
