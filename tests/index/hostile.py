"""A folder of everything that breaks image pipelines, and what should become of each file."""

import contextlib
import io
import os
import pickle
import socket
import struct
import tarfile
import zipfile
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pillow_heif
from PIL import Image

from tests.conftest import draw_image

PHOTO = draw_image((180, 90, 40), seed=1, size=(300, 200))
SECOND = draw_image((10, 90, 200), seed=2, size=(300, 200))
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>alert(1)</script></svg>'


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def encode_heic(image: Image.Image, **options: object) -> bytes:
    """The bytes of an image as a HEIC file; options as pillow-heif has them."""
    file = io.BytesIO()
    pillow_heif.from_pillow(image).save(file, quality=90, **options)
    return file.getvalue()


def first_part(data: bytes, share: float) -> bytes:
    return data[: int(len(data) * share)]


def png(chunks: list[tuple[bytes, bytes]]) -> bytes:
    """A PNG of the given chunks, with right checksums."""
    parts = [b"\x89PNG\r\n\x1a\n"]
    for name, body in chunks:
        parts += [struct.pack(">I", len(body)), name, body, struct.pack(">I", zlib.crc32(name + body))]
    return b"".join(parts)


def png_bomb(side: int) -> bytes:
    """A black and white PNG of side x side pixels, compressed row by row so that it never lies in memory."""
    packer, row = zlib.compressobj(9), bytes(1 + side // 8)
    packed = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return png([(b"IHDR", header), (b"IDAT", packed), (b"IEND", b"")])


def rgb16_png() -> bytes:
    """A PNG with 16 bits a channel, which Pillow reads but does not write."""
    rows = np.full((20, 30, 3), 40_000, dtype=">u2")
    packed = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    header = struct.pack(">IIBBBBB", 30, 20, 16, 2, 0, 0, 0)
    return png([(b"IHDR", header), (b"IDAT", packed), (b"IEND", b"")])


def text_bomb_png() -> bytes:
    """A thumbnail with 100 MB of compressed text beside it."""
    header = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    text = b"Comment\0\0" + zlib.compress(bytes(100_000_000), 9)
    pixels = zlib.compress(bytes(9 * 8))
    return png([(b"IHDR", header), (b"zTXt", text), (b"IDAT", pixels), (b"IEND", b"")])


def with_orientation(image: Image.Image, orientation: int) -> bytes:
    """A JPEG stored turned, with the EXIF tag that says so."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(image, "JPEG", exif=exif, quality=95)


def with_damaged_exif() -> bytes:
    """A sound JPEG whose EXIF block is nonsense."""
    data = with_orientation(PHOTO, 6)
    start = data.index(b"Exif\0\0") + 6
    return data[:start] + b"\xff" * 16 + data[start + 16 :]


def zip_archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("photo.png", encode(PHOTO, "PNG"))
    return buffer.getvalue()


def tar_with_a_huge_link() -> bytes:
    """A tar whose only member, a link, has a header that announces 2**70 bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "x"
        archive.addfile(link)
    data = bytearray(buffer.getvalue())
    data[124:136] = b"\x80" + (2**70).to_bytes(11, "big")
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


def zip_of_a_huge_member(size_bytes: int) -> bytes:
    """A zip of `photo.png` whose list announces a size of up to 64 bits."""
    data = bytearray(zip_archive())
    central, extra = data.index(b"PK\1\2"), struct.pack("<HHQ", 1, 8, size_bytes)
    data[central + 24 : central + 28] = b"\xff" * 4
    data[central + 30 : central + 32] = struct.pack("<H", len(extra))
    name_end = central + 46 + len("photo.png")
    data[name_end:name_end] = extra
    end = data.index(b"PK\5\6")
    (list_bytes,) = struct.unpack_from("<L", data, end + 12)
    struct.pack_into("<L", data, end + 12, list_bytes + len(extra))
    return bytes(data)


def palette_with_transparency() -> bytes:
    """A palette PNG whose first colours are see-through."""
    return encode(PHOTO.convert("P"), "PNG", transparency=b"\x00\x80\xff")


def lying_jpeg() -> bytes:
    """A JPEG whose header announces 65,000 x 65,000 pixels."""
    data = bytearray(encode(PHOTO, "JPEG"))
    start = data.index(b"\xff\xc0") + 5
    data[start : start + 4] = struct.pack(">HH", 65_000, 65_000)
    return bytes(data)


def lying_gif() -> bytes:
    """A GIF whose header and first frame announce 65,535 x 65,535 pixels."""
    data = bytearray(encode(PHOTO, "GIF"))
    size = struct.pack("<HH", *PHOTO.size)
    frame = data.index(b"," + bytes(4) + size) + 5
    data[6:10] = data[frame : frame + 4] = b"\xff" * 4
    return bytes(data)


@cache
def contents() -> dict[bytes, tuple[bytes, str | None]]:
    """File name to content and the reason for which it is skipped (None: it is indexed)."""
    jpeg, photo_png = encode(PHOTO, "JPEG"), encode(PHOTO, "PNG")
    progressive = encode(PHOTO, "JPEG", progressive=True)
    webp, tiff, avif = (encode(PHOTO, kind) for kind in ("WEBP", "TIFF", "AVIF"))
    heic = encode_heic(PHOTO)
    grey16 = Image.fromarray(np.linspace(0, 65_535, 900).astype(np.uint16).reshape(30, 30))
    more = {"save_all": True, "append_images": [SECOND]}
    return {
        b"zero.jpg": (b"", "empty-file"),
        b"third.jpg": (first_part(jpeg, 1 / 3), "corrupt"),
        b"third.png": (first_part(photo_png, 1 / 3), "corrupt"),
        b"third_progressive.jpg": (first_part(progressive, 1 / 3), "corrupt"),
        b"third.webp": (first_part(webp, 1 / 3), "corrupt"),
        b"third.tif": (first_part(tiff, 1 / 3), "corrupt"),
        b"third.avif": (first_part(avif, 1 / 3), "not-an-image"),
        b"third.heic": (first_part(heic, 1 / 3), "corrupt"),
        b"third.gif": (first_part(encode(PHOTO, "GIF"), 1 / 3), "corrupt"),
        b"third.bmp": (first_part(encode(PHOTO, "BMP"), 1 / 3), "corrupt"),
        b"page.jpg": (b"<!doctype html><title>404 Not Found</title>", "not-an-image"),
        b"drawing.svg": (SVG, "not-an-image"),
        b"drawing.png": (SVG, "not-an-image"),
        b"notes.txt": (b"no image\n", "not-an-image"),
        b"archive.zip": (b"PK\x05\x06 no archive", "corrupt-archive"),
        b"model.pkl": (pickle.dumps({"a": 1}), "not-an-image"),
        b"paper.pdf": (b"%PDF-1.7\n1 0 obj\n", "not-an-image"),
        b"script.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "not-an-image"),
        b"favicon.ico": (encode(PHOTO, "ICO"), "not-an-image"),
        b"zeros.jpg": (bytes(5000), "not-an-image"),
        b"magic_only.jpg": (b"\xff\xd8\xff", "not-an-image"),
        b"float.tif": (encode(Image.new("F", (20, 20), 0.5), "TIFF"), "unsupported-pixels"),
        b"bomb.png": (png_bomb(30_000), "too-many-pixels"),
        b"text_bomb.png": (text_bomb_png(), "corrupt"),
        b"huge_header.gif": (lying_gif(), "too-many-pixels"),
        b"lying.jpg": (lying_jpeg(), "too-many-pixels"),
        b"cmyk.jpg": (encode(PHOTO.convert("CMYK"), "JPEG"), None),
        b"grey.jpg": (encode(PHOTO.convert("L"), "JPEG"), None),
        b"grey16.png": (encode(grey16, "PNG"), None),
        b"rgb16.png": (rgb16_png(), None),
        b"palette.png": (palette_with_transparency(), None),
        b"la.png": (encode(PHOTO.convert("LA"), "PNG"), None),
        b"rgba.png": (encode(PHOTO.convert("RGBA"), "PNG"), None),
        b"one_bit.png": (encode(PHOTO.convert("1"), "PNG"), None),
        b"animated.gif": (encode(PHOTO, "GIF", **more), None),
        b"animated.webp": (encode(PHOTO, "WEBP", **more), None),
        b"stereo.mpo": (encode(PHOTO, "MPO", **more), None),
        b"photo.avif": (avif, None),
        b"photo.heic": (heic, None),
        b"photo.tif": (encode(PHOTO, "TIFF", compression="tiff_lzw"), None),
        b"photo.bmp": (encode(PHOTO, "BMP"), None),
        b"progressive.jpg": (progressive, None),
        b"trailing.jpg": (jpeg + b"<?php echo 1; ?>" * 50, None),
        b"upright.png": (photo_png, None),
        b"rotated.jpg": (with_orientation(PHOTO.transpose(Image.Transpose.ROTATE_90), 6), None),
        b"damaged_exif.jpg": (with_damaged_exif(), None),
        b"png_inside.txt": (photo_png, None),
        b"png_inside.jpg": (photo_png, None),
        b"no_extension": (photo_png, None),
        b"tiny.png": (encode(Image.new("RGB", (1, 1), "red"), "PNG"), None),
        b"strip.png": (encode(Image.new("RGB", (1, 5000), "red"), "PNG"), None),
        b"new\nline.png": (photo_png, None),
        b"-rf.png": (photo_png, None),
        b".hidden.png": (photo_png, None),
        b"quote'\"<b>&.png": (photo_png, None),
        "emoji 🐈.png".encode(): (photo_png, None),
        b"caf\xe9 not utf-8.png": (photo_png, None),
        b"long" * 60 + b".png": (photo_png, None),
        b"folder.jpg/inside.png": (photo_png, None),
    }


def write_hostile(folder: Path) -> dict[bytes, str | None]:
    """Write the folder; every path that a walk finds, with the reason for which it is skipped (None: indexed)."""
    expected: dict[bytes, str | None] = {}
    for name, (content, reason) in contents().items():
        path = Path(os.fsdecode(os.path.join(os.fsencode(folder), name)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        expected[name] = reason
    return expected | _write_archives(folder) | _write_special_files(folder)


def _write_archives(folder: Path) -> dict[bytes, str | None]:
    """Archives whose members are entered, with sizes that no 64 signed bits hold."""
    (folder / "huge_link.tar").write_bytes(tar_with_a_huge_link())
    (folder / "huge_member.zip").write_bytes(zip_of_a_huge_member(2**63 + 5))
    return {b"huge_link.tar/link.jpg": "not-a-file", b"huge_member.zip/photo.png": "file-too-large"}


def _write_special_files(folder: Path) -> dict[bytes, str | None]:
    (folder / "dangling.jpg").symlink_to("nowhere.jpg")
    (folder / "self.jpg").symlink_to("self.jpg")
    (folder / "folder.jpg" / "up").symlink_to("..")
    (folder / "linked.png").symlink_to("upright.png")
    os.link(folder / "upright.png", folder / "hard_link.png")
    (folder / "far_future.png").write_bytes(encode(PHOTO, "PNG"))
    os.utime(folder / "far_future.png", (10**10, 10**10))  # nanoseconds that no 64 signed bits hold
    os.mkfifo(folder / "pipe.jpg")
    with contextlib.chdir(folder), socket.socket(socket.AF_UNIX) as server:  # its path may have only 108 bytes
        server.bind("socket.jpg")
    (folder / "secret.png").write_bytes(encode(PHOTO, "PNG"))
    (folder / "secret.png").chmod(0)
    (folder / "locked").mkdir()
    (folder / "locked" / "unseen.png").write_bytes(encode(PHOTO, "PNG"))
    (folder / "locked").chmod(0)
    return {
        b"dangling.jpg": "dangling-link",
        b"self.jpg": "link-loop",
        b"folder.jpg/up": "link-loop",
        b"linked.png": None,
        b"hard_link.png": None,
        b"far_future.png": None,
        b"pipe.jpg": "not-a-file",
        b"socket.jpg": "not-a-file",
        b"secret.png": "permission-denied",
        b"locked": "permission-denied",
    }
