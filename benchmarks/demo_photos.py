"""Packs the photos of `retrieval demo`: people's clothes (CC0) and groceries in shops (MIT), small, some of each kind,
all of kinds that the model in the box has not learnt from. Their licences are written beside them.

    python -m benchmarks.demo_photos --out retrieval_app/demo/photos.tar
"""

from __future__ import annotations

import argparse
import io
import tarfile
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from benchmarks.common.record import ending_in_words
from benchmarks.noise.splits import list_split
from training.data.datasets import Record

SPLITS = ("clothing-disjoint", "groceries-disjoint")
_ORIGINS = """The clothes ({clothes}) are from the Clothing dataset (full), whose photos
people gave away: CC0, no rights reserved. The groceries (all other kinds) are from the Grocery Store Dataset (Klasson,
Zhang and Kjellström, A Hierarchical Grocery Store Image Dataset with Visual and Semantic Labels, 2019), under the
licence below. All were made smaller.

{licence}"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="the .tar to write")
    add("--per-kind", type=int, default=18, help="photos of a kind (default: 18)")
    add("--side", type=int, default=112, help="pixels of the shorter side (default: 112)")
    add("--quality", type=int, default=75, help="of the JPEG (default: 75)")
    options = parser.parse_args(arguments)
    with ending_in_words("demo_photos"), TemporaryDirectory() as work:
        kinds: dict[str, list[Record]] = defaultdict(list)
        clothes, groceries = (list_split(name, work=Path(work)).test for name in SPLITS)
        for record in (*clothes, *groceries):
            kinds[record.label.lstrip("0123456789_").lower()].append(record)
        with tarfile.open(options.out, "w") as archive:
            for kind, records in sorted(kinds.items()):
                for number, record in enumerate(_choose(records, options.per_kind)):
                    data = _make_smaller(record.path, side=options.side, quality=options.quality)
                    _add(archive, f"{kind}/{number:02}.jpg", data)
        licence = next(Path(work).rglob("LICENSE")).read_text(encoding="utf-8")
        named = ", ".join(sorted({record.label for record in clothes}))
        options.out.with_suffix(".txt").write_text(
            _ORIGINS.format(clothes=named, licence=licence), encoding="utf-8"
        )
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB")


def _choose(records: list[Record], count: int) -> list[Record]:
    """Spread over all of a kind by name: neighbours are often shots of one scene."""
    ordered = sorted(records, key=lambda record: record.path)
    return [ordered[number * len(ordered) // count] for number in range(min(count, len(ordered)))]


def _make_smaller(path: Path, *, side: int, quality: int) -> bytes:
    image = Image.open(path).convert("RGB")
    scale = side / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, optimize=True)
    return file.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    archive.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    main()
