"""Damaged tar and zip files: listed and read within bounds, to known reasons, and no name leads out of them."""

import io
import json
import random
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.bounded import Subject, start_subject
from tests.fuzz.mutations import mutate
from tests.index.hostile import PHOTO, encode, tar_with_a_huge_link, zip_archive, zip_of_a_huge_member

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)


def _members() -> list[tuple[str, bytes]]:
    photo = encode(PHOTO.resize((40, 30)), "PNG")
    sample = json.dumps({"label": 3, "caption": "a lamp", "width": 300}).encode()
    return [
        *(("1.jpg", photo), ("1.json", sample), ("1.txt", b"a lamp"), ("red/2.jpg", photo), ("red/2.cls", b"7")),
        *(("caf\xe9 \u2603.png", photo), ("empty.jpg", b""), ("x" * 150 + "/3.png", photo)),
        ("text.jpg", bytes(4000)),
    ]


def zip_seeds() -> list[bytes]:
    """Of every method of compression, one streamed, one with a comment, and hostile ones."""
    seeds = [zip_archive(), zip_of_a_huge_member(2**63 + 5), zip_of_a_huge_member(2**33)]
    for method in _METHODS:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive:
            for name, data in _members():
                archive.writestr(name, data)
            archive.comment = b"PK\5\6" if method == zipfile.ZIP_STORED else b""
        seeds.append(buffer.getvalue())
    return seeds


def tar_seeds() -> list[bytes]:
    """In every form of headers, with links, and hostile ones."""
    seeds = [tar_with_a_huge_link()]
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
            for name, data in _members():
                info = tarfile.TarInfo(name if form != tarfile.USTAR_FORMAT else name[-90:])
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
            link = tarfile.TarInfo("link.jpg")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(link)
        seeds.append(buffer.getvalue())
    return seeds


class ArchiveAttack:
    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._seeds = {".tar": tar_seeds(), ".zip": zip_seeds()}

    def attack(self, chance: random.Random) -> str:
        suffix = chance.choice(sorted(self._seeds))
        outcome = self._subject.attack(mutate(self._seeds[suffix], chance), suffix=suffix)
        return f"{suffix[1:]} {outcome}"

    def check(self) -> None:
        """All is said of each archive."""


@contextmanager
def attack_archives(folder: Path) -> Iterator[ArchiveAttack]:
    with start_subject("archives", folder=folder) as subject:
        yield ArchiveAttack(subject)
