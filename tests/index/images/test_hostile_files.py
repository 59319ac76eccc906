import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from index.catalog.reader import read_catalog
from index.catalog.rows import CatalogRow
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.images.image_files import REASONS
from index.sources.reading import read_place
from tests.conftest import draw_image
from tests.index.hostile import write_hostile
from tests.index.images.test_costly_files import MEASURED

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
MEGABYTES_MORE = 150
OF_OTHER_TESTS = {
    *("unreadable", "too-costly", "oversized-row", "bad-embedding", "encrypted", "compressed-archive", "removed"),
    *("needs-package", "not-found", "unreachable", "refused-address", "skip-if", "unsupported-file"),
}


@dataclass(frozen=True, slots=True)
class HostileBuild:
    expected: dict[bytes, str | None]
    report: dict[str, object]
    stderr: str
    peak_mb: int
    harmless_peak_mb: int
    gallery: Path
    rows: dict[bytes, CatalogRow]


def minding_permissions(command: list[str]) -> list[str]:
    """The command, run so that file permissions hold even for root."""
    if os.geteuid() != 0:
        return command
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root without setpriv cannot lose the right to read everything")
    lost = "-dac_override,-dac_read_search"
    return [setpriv, "--bounding-set", lost, "--inh-caps", lost, *command]


def run_build(model: Path, folder: Path, out: Path) -> tuple[dict[str, object], str, int]:
    """Build in a process of its own that minds permissions; the report, stderr, and its peak memory in MB."""
    command = [sys.executable, "-c", MEASURED, "build", str(model), str(folder), "--out", str(out), "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = minding_permissions(command)
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    *stderr, measured = ran.stderr.splitlines()
    return json.loads(ran.stdout), "\n".join(stderr), int(measured.split()[0])


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> HostileBuild:
    root = tmp_path_factory.mktemp("hostile")
    folder, harmless = root / "images", root / "harmless"
    for target in (folder, harmless):
        target.mkdir()
        for number in range(4):
            draw_image((200, 90, 30), seed=number, size=(1200, 900)).save(target / f"ordinary{number}.png")
    expected = write_hostile(folder) | {b"ordinary%d.png" % number: None for number in range(4)}
    _, _, harmless_peak = run_build(tiny_model, harmless, root / "harmless_gallery")
    report, stderr, peak = run_build(tiny_model, folder, root / "gallery")
    (folder / "locked").chmod(0o700)  # or the folder could not be removed
    with read_catalog(root / "gallery" / "versions" / "000001" / "catalog.sqlite") as catalog:
        rows = {os.fsencode(row.path): row for row in catalog.rows()}
    return HostileBuild(expected, report, stderr, peak, harmless_peak, root / "gallery", rows)


def test_every_hostile_file_is_indexed_or_skipped_with_its_reason_in_little_memory(hostile: HostileBuild) -> None:
    found = {path: row.reason for path, row in hostile.rows.items()}
    assert found == hostile.expected
    assert len(found) >= 60
    for row in hostile.rows.values():
        assert row.status == ("indexed" if row.reason is None else "skipped")
        assert row.reason is None or (row.reason in REASONS and row.detail)
    reasons = Counter(reason for reason in hostile.expected.values() if reason is not None)
    assert hostile.report["skipped_by_reason"] == dict(sorted(reasons.items()))
    assert set(reasons) >= set(REASONS) - OF_OTHER_TESTS
    assert "Warning" not in hostile.stderr
    assert "Traceback" not in hostile.stderr
    assert hostile.peak_mb < hostile.harmless_peak_mb + MEGABYTES_MORE


def test_the_same_picture_in_other_clothes_embeds_alike(hostile: HostileBuild) -> None:
    gallery = Gallery.open(hostile.gallery)
    assert verify_gallery(hostile.gallery).problems == []
    upright = gallery.vector(hostile.rows[b"upright.png"].id)
    alike = {
        0.99999: (b"photo.tif", b"rgba.png", b"caf\xe9 not utf-8.png", b"new\nline.png"),
        0.999: (b"rotated.jpg", b"damaged_exif.jpg"),
        0.99: (b"animated.webp", b"stereo.mpo", b"photo.avif", b"photo.heic", b"trailing.jpg"),
    }
    for least, name in ((least, name) for least, names in alike.items() for name in names):
        assert float(gallery.vector(hostile.rows[name].id) @ upright) > least, name


def test_hits_with_hostile_names_are_found_and_can_be_written_as_json(hostile: HostileBuild) -> None:
    gallery = Gallery.open(hostile.gallery)
    hits = gallery.search(gallery.vector(hostile.rows[b"upright.png"].id), k=1000)
    assert len(hits) == gallery.count
    for hit in hits:
        json.dumps(hit.to_json(), ensure_ascii=False).encode("utf-8")
        if os.fsencode(hit.path) != b"secret.png":
            assert read_place(gallery.place(hit.id))


@pytest.mark.parametrize(
    ("denied", "problem"),
    [
        ("parent", "the gallery cannot be made: Permission denied"),
        ("out", "permission denied; the gallery cannot be written there"),
        ("images", "permission denied; the folder cannot be listed"),
    ],
)
def test_a_denied_folder_is_named_first(tmp_path: Path, tiny_model: Path, denied: str, problem: str) -> None:
    (tmp_path / "images").mkdir()
    draw_image((1, 2, 3), seed=0).save(tmp_path / "images" / "a.png")
    (tmp_path / "parent" / "out").mkdir(parents=True)
    out = tmp_path / "parent" / ("new" if denied == "parent" else "out")
    locked = {"images": tmp_path / "images", "parent": tmp_path / "parent", "out": out}[denied]
    locked.chmod(0o500 if denied != "images" else 0)
    build = (
        "import sys; from index.commands.index_group import index_group; "
        "index_group(sys.argv[1:], standalone_mode=False)"
    )
    words = ["build", str(tiny_model), str(tmp_path / "images"), "--out", str(out)]
    command = minding_permissions([sys.executable, "-c", build, *words])
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    locked.chmod(0o700)
    assert ran.returncode == 1
    assert "index.errors.InputError: " in ran.stderr
    assert problem in ran.stderr.splitlines()[-1]
    assert os.listdir(tmp_path / "parent" / "out") == []
