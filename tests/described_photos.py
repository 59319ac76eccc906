"""Photos that say of themselves when, where and with what they were taken."""

import struct
from pathlib import Path

from PIL import Image

from tests.conftest import draw_image

XMP = (
    '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    '<rdf:Description xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title><rdf:Alt>'
    '<rdf:li xml:lang="x-default">{title}</rdf:li></rdf:Alt></dc:title><dc:subject><rdf:Bag>'
    "<rdf:li>{keyword}</rdf:li><rdf:li>sun</rdf:li></rdf:Bag></dc:subject></rdf:Description></rdf:RDF></x:xmpmeta>"
)


def make_exif(taken: str | None = None, *, place: tuple[float, float] | None = None) -> Image.Exif:
    exif = Image.Exif()
    exif[0x010F], exif[0x0110], exif[0x0112] = "NIKON CORPORATION", "NIKON D750", 6
    if taken is not None:
        exif.get_ifd(0x8769).update({0x9003: taken, 0x9291: "34", 0x9011: "+02:00", 0x927C: b"a maker's note"})
    if place is not None:
        north, east = place
        gps = {1: "S" if north < 0 else "N", 2: (abs(north), 0.0, 0.0), 3: "E", 4: (int(east), east % 1 * 60, 0.0)}
        exif.get_ifd(0x8825).update(gps)
    return exif


def make_iptc(**fields: str) -> bytes:
    """The segment of a JPEG with a title, a caption or one keyword."""
    numbers = {"title": 5, "keywords": 25, "caption": 120}
    values = ((2, numbers[name], text.encode()) for name, text in fields.items())
    records = b"".join(struct.pack(">BBBH", 0x1C, *head, len(text)) + text for *head, text in values)
    resource = b"8BIM" + struct.pack(">HHL", 0x0404, 0, len(records)) + records + b"\0" * (len(records) % 2)
    return b"\xff\xed" + struct.pack(">H", len(resource) + 16) + b"Photoshop 3.0\0" + resource


def save_photo(
    path: Path, taken: str | None, *, seed: int, place: tuple[float, float] | None = None, word: str = ""
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    xmp = {"xmp": XMP.format(title="A market", keyword=word).encode()} if word else {}
    draw_image((90, 60 + seed, 40), seed=seed).save(path, exif=make_exif(taken, place=place), **xmp)
