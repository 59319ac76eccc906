import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from index.errors import ImageError
from index.images.image_files import REASONS, decode_image, read_image
from index.limits import MAX_PIXELS
from index.sources.folder_walk import walk_folder
from index.text import printable_path, valid_text
from tests.conftest import draw_image, tries
from tests.index.hostile import encode

ORIENTATION = 0x0112
ROOT = Path(__file__).parents[3]


def decode(data: bytes, *, target_side: int = 64, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    image = decode_image(data, name="drawn", target_side=target_side, max_pixels=max_pixels)
    assert image.mode == "RGB"
    return np.asarray(image)


def small_images() -> list[bytes]:
    image = draw_image((90, 160, 40), seed=1, size=(20, 14))
    other = draw_image((200, 10, 90), seed=2, size=(20, 14))
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    return [
        encode(image, "JPEG", exif=exif),
        encode(image, "JPEG", progressive=True),
        encode(image.convert("CMYK"), "JPEG"),
        encode(image, "PNG", exif=exif),
        encode(image.convert("P"), "PNG", transparency=b"\x00\x80"),
        encode(image, "GIF", save_all=True, append_images=[other]),
        encode(image, "WEBP", exif=exif),
        encode(image, "BMP"),
        encode(image.convert("P"), "BMP"),
        encode(image, "TIFF"),
        encode(image, "TIFF", compression="tiff_lzw"),
    ]


SMALL_IMAGES = small_images()


@pytest.mark.deep
@settings(max_examples=tries(100, deep=400), deadline=None)
@given(
    data=st.sampled_from(SMALL_IMAGES),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=12),
    keep=st.floats(0, 1),
)
@example(data=SMALL_IMAGES[0], flips=[], keep=0.34)
def test_damaged_bytes_give_rgb_or_an_error(data: bytes, flips: list[tuple[int, int]], keep: float) -> None:
    damaged = bytearray(data[: round(len(data) * keep)] if keep < 0.9 else data)
    for position, value in flips:
        if damaged:
            damaged[position % len(damaged)] = value
    try:
        pixels = decode(bytes(damaged), target_side=16, max_pixels=1_000_000)
    except ImageError as error:
        assert error.reason in REASONS  # noqa: PT017 - either outcome is right, this one only with a known reason
    else:
        assert pixels.ndim == 3
        assert pixels.shape[2] == 3


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_never_an_image(data: bytes) -> None:
    with pytest.raises(ImageError) as caught:
        decode(data)
    assert caught.value.reason in {"empty-file", "not-an-image", "corrupt"}


@pytest.mark.parametrize(("name", "advice"), [("a.TAR.zst", "unpack it"), ("a.arrow", "to_parquet")])
def test_a_file_of_images_that_is_not_read_tells_what_to_do(tmp_path: Path, name: str, advice: str) -> None:
    (tmp_path / name).write_bytes(b"ARROW1" + bytes(99))
    with pytest.raises(ImageError, match=advice) as caught:
        read_image(tmp_path / name, target_side=8)
    assert caught.value.reason == "unsupported-file"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF"])
def test_every_format_decodes_close_to_what_was_drawn(kind: str) -> None:
    image = Image.new("RGB", (48, 32), (200, 80, 40))
    assert np.abs(decode(encode(image, kind)).astype(int) - np.asarray(image)).max() <= 6


def test_an_animation_gives_its_first_frame() -> None:
    first, second = Image.new("RGB", (16, 16), "red"), Image.new("RGB", (16, 16), "blue")
    for kind in ("GIF", "WEBP"):
        pixels = decode(encode(first, kind, save_all=True, append_images=[second], duration=100))
        assert pixels[..., 0].min() > 240
        assert pixels[..., 2].max() < 16


def test_exif_orientation_turns_the_image_upright() -> None:
    upright = Image.new("RGB", (32, 16), "white")
    upright.paste("red", (0, 0, 16, 16))
    turn = Image.Transpose
    turns = [None, turn.FLIP_LEFT_RIGHT, turn.ROTATE_180, turn.FLIP_TOP_BOTTOM]
    turns += [turn.TRANSPOSE, turn.ROTATE_90, turn.TRANSVERSE, turn.ROTATE_270]
    exif = Image.Exif()
    for orientation, way in enumerate(turns, start=1):
        exif[ORIENTATION] = orientation
        stored = upright if way is None else upright.transpose(way)
        assert np.array_equal(decode(encode(stored, "PNG", exif=exif)), np.asarray(upright)), orientation
    exif[ORIENTATION] = 6  # where it is damaged, sound pixels stay as they are stored
    data = encode(Image.new("RGB", (32, 16), "red"), "JPEG", exif=exif)
    start = data.index(b"Exif\x00\x00") + 6
    damaged = data[:start] + b"\xff" * 20 + data[start + 20 :]
    assert decode(damaged).shape == (16, 32, 3)


def test_sixteen_bit_grey_keeps_its_range() -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    for kind in ("PNG", "TIFF"):
        pixels = decode(encode(Image.fromarray(ramp), kind))
        assert np.array_equal(pixels[..., 0], (ramp >> 8).astype(np.uint8)), kind


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_transparent_pixels_become_white(mode: str) -> None:
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 4, 8))
    kind = "TIFF" if mode == "PA" else "PNG"
    data = encode(image.convert("LA") if mode == "LA" else image, kind)
    pixels = decode(data)
    assert (pixels[:, :4] == 0).all()
    assert (pixels[:, 4:] == 255).all()


def test_floating_point_pixels_are_refused_by_name() -> None:
    with pytest.raises(ImageError) as caught:
        decode(encode(Image.new("F", (8, 8), 0.5), "TIFF"))
    assert caught.value.reason == "unsupported-pixels"


def test_the_pixel_cap_is_checked_on_the_header() -> None:
    data = encode(Image.new("1", (2000, 1000)), "PNG")
    assert decode(data, max_pixels=2_000_000, target_side=500).shape == (1000, 2000, 3)
    with pytest.raises(ImageError, match="2000 x 1000 pixels, at most 1999999") as caught:
        decode(data, max_pixels=1_999_999)
    assert caught.value.reason == "too-many-pixels"


def test_a_large_jpeg_is_decoded_at_no_less_than_twice_the_target() -> None:
    pixels = decode(encode(Image.new("RGB", (1600, 1200), "green"), "JPEG"), target_side=100)
    assert min(pixels.shape[:2]) >= 200
    assert max(pixels.shape[:2]) < 1600


def large_images() -> dict[str, Image.Image]:
    """One image in every kind of pixels that is converted, 500 x 330."""
    photo = draw_image((200, 90, 40), seed=4, size=(500, 330))
    alpha = Image.linear_gradient("L").resize(photo.size)
    see_through = photo.convert("RGBA")
    see_through.putalpha(alpha)
    ramp = np.linspace(0, 65535, 500 * 330).astype(np.uint16).reshape(330, 500)
    palette = photo.convert("P")
    palette.info["transparency"] = bytes(range(256))
    return {
        **{mode: photo.convert(mode) for mode in ("RGB", "L", "1", "CMYK", "P")},
        "RGBA": see_through,
        "LA": see_through.convert("LA"),
        "I;16": Image.fromarray(ramp),
        "I": Image.fromarray(ramp.astype(np.int32)),
        "I of 8 bits": Image.fromarray((ramp >> 8).astype(np.int32)),
        "transparent P": palette,
    }


@pytest.mark.parametrize("mode", large_images())
def test_conversion_in_strips_gives_the_same_pixels(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(large_images()[mode], "TIFF" if mode.startswith(("CMYK", "I ")) or mode == "I" else "PNG")
    for target_side in (200, 20):  # left as it is, and reduced by 8
        whole = decode(data, target_side=target_side)
        with monkeypatch.context() as patched:
            patched.setattr("index.images.decode._STRIP_PIXELS", 6000)
            assert np.array_equal(decode(data, target_side=target_side), whole)
    assert whole.shape == (42, 63, 3)


def test_an_image_is_reduced_only_where_both_sides_stay_twice_the_target() -> None:
    image = draw_image((200, 90, 40), seed=4, size=(500, 330))
    data = encode(image, "PNG")
    assert np.array_equal(decode(data, target_side=83), np.asarray(image))
    assert np.array_equal(decode(data, target_side=82), np.asarray(image.reduce(2)))


def test_colour_below_transparent_pixels_does_not_bleed_when_reduced() -> None:
    image = Image.new("RGBA", (400, 400), (255, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 201, 400))
    pixels = decode(encode(image, "PNG"), target_side=50)
    assert pixels.shape == (100, 100, 3)
    assert np.ptp(pixels, axis=2).max() == 0  # black, white, and the grey between: no red


@pytest.mark.parametrize("mode", ["I;16", "RGBA", "P"])
@pytest.mark.slow
def test_a_large_image_in_a_small_file_costs_little_more_than_its_pixels(tmp_path: Path, mode: str) -> None:
    side = 4000
    image = Image.fromarray(np.zeros((side, side), np.uint16)) if mode == "I;16" else Image.new(mode, (side, side))
    options = {"transparency": 0} if mode == "P" else {}
    (tmp_path / "large.png").write_bytes(encode(image, "PNG", compress_level=1, **options))
    code = (
        "import sys; from pathlib import Path; from index.images.image_files import read_image\n"
        "def peak():\n"
        "    lines = Path('/proc/self/status').read_text().splitlines()\n"
        "    return next(int(line.split()[1]) for line in lines if line.startswith('VmHWM'))\n"
        "before = peak(); read_image(Path(sys.argv[1]), target_side=64); print(peak() - before)"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "large.png")]
    ran = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    pixels_kib = side * side * {"I;16": 2, "RGBA": 4, "P": 1}[mode] // 1024
    assert int(ran.stdout) < pixels_kib + 120 * 1024


@pytest.mark.parametrize(("kind", "keep"), [("JPEG", 1 / 3), ("JPEG", 0.9), ("PNG", 0.9)])
def test_a_truncated_image_is_corrupt_and_never_half_grey(kind: str, keep: float) -> None:
    data = encode(draw_image((10, 200, 90), seed=3, size=(200, 150)), kind)
    with pytest.raises(ImageError) as caught:
        decode(data[: int(len(data) * keep)])
    assert caught.value.reason == "corrupt"


def test_reading_a_pipe_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ImageError) as caught:
        read_image(tmp_path / "pipe", target_side=64)
    assert caught.value.reason == "not-a-file"


def test_the_walk_follows_links_but_never_in_circles(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "o.jpg").write_bytes(b"x")
    (root / "sub" / "up").symlink_to(root)
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "self").symlink_to("self")
    (root / "gone").symlink_to("nowhere")
    for name in ("b/2.jpg", "b/10.jpg", "Z.jpg", "é.jpg", "b.jpg"):  # by bytes, depth first
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"x")
    found = [(file.path, file.problem and file.problem.reason) for file in walk_folder(root)]
    assert [name for name, reason in found if not reason] == [
        *("Z.jpg", "b/10.jpg", "b/2.jpg", "b.jpg", "out/o.jpg", "é.jpg")
    ]
    assert [one for one in found if one[1]] == [
        ("gone", "dangling-link"),
        ("self", "link-loop"),
        ("sub/up", "link-loop"),
    ]


@pytest.mark.slow
def test_folders_nested_beyond_pythons_recursion_are_walked(tmp_path: Path) -> None:
    above = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("a", dir_fd=above)
        below = os.open("a", os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(os.open("deep.jpg", os.O_CREAT | os.O_WRONLY, dir_fd=above))
    os.close(above)
    try:
        assert [file.path for file in walk_folder(tmp_path)] == ["a/" * 1200 + "deep.jpg"]
    finally:  # the test runner's own clean-up recurses
        (tmp_path / ("a/" * 1200) / "deep.jpg").unlink()
        for depth in range(1200, 0, -1):
            os.rmdir(f"{tmp_path}/{'a/' * depth}")


def test_a_folder_is_walked_once_by_links_and_once_by_its_own_path(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for folder in (root / "own", tmp_path / "one", tmp_path / "two"):
        folder.mkdir(parents=True)
        (folder / "x.jpg").write_bytes(b"x")
    for name, target in (("a", "one"), ("b", "two"), ("c", "one"), ("d", "root/own"), ("z", "root/own")):
        (root / name).symlink_to(tmp_path / target)
    files = {file.path: file.problem for file in walk_folder(root)}
    assert [name for name, problem in files.items() if problem is None] == [
        "a/x.jpg",
        "b/x.jpg",
        "d/x.jpg",
        "own/x.jpg",
    ]
    reasons = {name: problem.reason for name, problem in files.items() if problem}
    assert reasons == {"c": "link-loop", "z": "link-loop"}


@given(st.binary(min_size=1, max_size=30).filter(lambda name: b"\0" not in name))
def test_any_file_name_can_be_printed_and_encoded(name: bytes) -> None:
    path = os.fsdecode(name)
    assert printable_path(path).isprintable()
    printable_path(path).encode("utf-8")
    valid_text(path).encode("utf-8")
    if path.isprintable():
        assert printable_path(path) == path == valid_text(path)


def test_folders_that_all_link_to_each_other_are_walked_in_bounded_time(tmp_path: Path) -> None:
    names = [f"f{number:02d}" for number in range(12)]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jpg").write_bytes(b"x")
        for other in names:
            (tmp_path / name / f"to_{other}").symlink_to(tmp_path / other)
    found = list(walk_folder(tmp_path))
    usable = [file.path for file in found if file.problem is None]
    assert {path for path in usable if path.count("/") == 1} == {f"{name}/x.jpg" for name in names}
    assert len(usable) <= 2 * len(names)
    assert len(found) <= 2 * len(names) * (len(names) + 1)
