"""The process that files are tried in: it may die, hang or swell, and the fuzzer sees it from outside.

It reads requests from its standard input, each a line of JSON, and answers each with one: the outcome, or the
traceback of what nobody foresaw. `python -m tests.fuzz.subject images`.
"""

import json
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from index.errors import ImageError
from index.images.image_files import REASONS, decode_image, read_bytes
from index.items import Place
from index.limits import MAX_PIXELS
from index.sources.archive_scan import scan_archive
from index.sources.reading import read_place

_TARGET_SIDE = 256
_MEMBERS_READ = 100


def try_image(path: Path) -> str:
    """Decode a file as indexing does: RGB of a sensible size, or a known reason."""
    try:
        image = decode_image(read_bytes(path), name=path.name, target_side=_TARGET_SIDE)
    except ImageError as error:
        return _known(error)
    assert image.mode == "RGB", image.mode
    assert 0 < image.width * image.height <= MAX_PIXELS, image.size
    image.tobytes()
    return "RGB"


def try_archive(path: Path) -> str:
    """List an archive and read its members: all that is told of them fits a catalogue, no name leads elsewhere."""
    outcomes = Counter[str]()
    for number, item in enumerate(scan_archive(path, archive=path.name)):
        numbers = (item.size_bytes, item.mtime_ns, item.starts_at or 0)
        assert all(-(2**63) <= number < 2**63 for number in numbers), numbers
        assert ".." not in PurePosixPath(item.path).parts, item.path
        assert item.path == path.name or item.path.startswith(f"{path.name}/"), item.path
        json.dumps(item.metadata, allow_nan=False, ensure_ascii=False).encode()
        if item.problem is not None:
            outcomes[_known(item.problem)] += 1
        elif number < _MEMBERS_READ:
            place = Place(
                path, name=item.path, offset=item.starts_at, size_bytes=item.size_bytes, mtime_ns=item.mtime_ns
            )
            try:
                outcomes["read"] += len(read_place(place)) == item.size_bytes
            except ImageError as error:
                outcomes[_known(error)] += 1
    return max(outcomes, key=lambda outcome: outcomes[outcome], default="empty")


def _known(error: ImageError) -> str:
    assert error.reason in REASONS, error.reason
    assert error.detail, error.reason
    return error.reason


TRIALS: dict[str, Callable[[Path], str]] = {"images": try_image, "archives": try_archive}


def main(name: str) -> None:
    warnings.simplefilter("ignore")
    trial = TRIALS[name]
    for line in sys.stdin:
        try:
            answer = {"outcome": trial(Path(json.loads(line)))}
        except Exception:  # noqa: BLE001 - whatever it is, it is the answer
            answer = {"problem": traceback.format_exc()}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
