"""The folder of a published gallery: what is in it, what an update writes, and what an interrupted one leaves."""

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from index.gallery.gallery import Gallery
from index.writing.build import build_gallery
from retrieval_app.commands.cli import main
from retrieval_app.publish.publish import quantise
from retrieval_app.publish.site_folder import SiteFolder
from retrieval_app.review.bulk import set_labels
from tests.conftest import draw_image

SECRETS = ("secret-label", "secret-column", "secret-value", "secret-exif", "secret-folder", "secret-file")


@pytest.fixture
def shop(tmp_path: Path, tiny_model: Path) -> Path:
    """A gallery of twelve images with a price, whose files, labels, EXIF and other column are secrets."""
    folder = tmp_path / "secret-folder"
    (folder / "photos").mkdir(parents=True)
    exif = Image.Exif()
    exif[0x010E] = "secret-exif"
    lines = ["path,label,price,secret-column"]
    for number in range(12):
        draw_image((20 * number, 60, 200), seed=number).save(folder / f"photos/secret-file{number}.jpg", exif=exif)
        lines.append(f"photos/secret-file{number}.jpg,secret-label,{number},secret-value")
    (folder / "shop.csv").write_text("\n".join(lines))
    build_gallery(model_path=tiny_model, sources=[folder / "shop.csv"], out=folder / "gallery")
    return folder / "gallery"


def publish(gallery: Path, site: Path, *options: str) -> int:
    return main(["publish", str(gallery), "--out", str(site), "--no-map", *options])


def read_all(site: Path) -> dict[str, bytes]:
    """Every file, unpacked."""
    found = {}
    for path in sorted(site.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            found[path.relative_to(site).as_posix()] = (
                gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
            )
    return found


def read_catalogue(site: Path) -> dict[str, Any]:
    """The catalogue that the index names; all files that both name are there."""
    files = read_all(site)
    index = files["index.html"].decode()
    data = json.loads(index.partition('id="site">')[2].partition("</script>")[0])
    catalogue: dict[str, Any] = json.loads(files[data["catalogue"]])
    named = {data["model"], data["runtime"], data["program"], *(shard["file"] for shard in data["vectors"])}
    named |= set(re.findall(r'(?:src|href)="(page-[^"]+)"', index))
    for start in range(0, len(catalogue["images"]), 16):
        name = catalogue["images"][start : start + 16]
        named.add(f"images/{name[:2]}/{name}-{data['side']}.webp")
    assert named <= set(files)
    return catalogue


def test_nothing_is_public_that_is_not_named(shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_labels(shop, None, ids=[12], drop=True)
    row = Gallery.open(shop).image(1)
    assert publish(shop, tmp_path / "site", "--where", "price > 2", "--map") == 0
    written = b"\n".join(name.encode() + content for name, content in read_all(tmp_path / "site").items())
    for secret in (*SECRETS, str(tmp_path), row.sha256 or "", '"price"'):
        assert secret.encode() not in written, secret
    assert read_catalogue(tmp_path / "site")["ids"] == list(range(4, 12))
    assert "Not public: label, tags, path, originals, price, secret-column, EXIF" in capsys.readouterr().err
    assert publish(shop, tmp_path / "site", "--include", "price, label") == 0
    catalogue = read_catalogue(tmp_path / "site")
    assert catalogue["values"] == {"price": list(range(11)), "label": ["secret-label"] * 11}
    assert publish(shop, tmp_path / "site", "--include", "owner") == 1
    assert "has no owner; it has label, tags, path, originals, price, secret-column" in capsys.readouterr().err


def test_publishing_again_writes_what_changed_alone(shop: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert publish(shop, site) == 0
    (site / "CNAME").write_text("example.org")
    before = {path: path.stat().st_mtime_ns for path in site.rglob("*") if path.is_file()}
    assert publish(shop, site) == 0
    assert {path: path.stat().st_mtime_ns for path in site.rglob("*") if path.is_file()} == before
    set_labels(shop, None, ids=[3], drop=True)
    assert publish(shop, site) == 0
    after = {path: path.stat().st_mtime_ns for path in site.rglob("*") if path.is_file()}
    assert sorted(path.name.partition("-")[0] for path in set(after) - set(before)) == ["catalogue", "vectors"]
    assert len(set(before) - set(after)) == 3  # those two, and the image
    assert (site / "CNAME").exists()


def test_an_interrupted_publishing_leaves_the_site_before(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, keep = tmp_path / "site", SiteFolder.keep
    assert publish(shop, site) == 0
    before = read_all(site)
    for steps in (0, 5, 12, 14, 40):
        left = [steps]

        def keep_some(folder: SiteFolder, *given: Any, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            keep(folder, *given)

        with monkeypatch.context() as patch:
            patch.setattr(SiteFolder, "keep", keep_some)
            assert publish(shop, site, "--include", "price", "--thumbnail-size", "64") == 130
        assert before.items() <= read_all(site).items()
        assert read_catalogue(site)["values"] == {}
    assert publish(shop, site, "--include", "price", "--thumbnail-size", "64") == 0
    assert read_catalogue(site)["values"] == {"price": list(range(12))}
    assert not [name for name in read_all(site) if name.endswith("-256.webp")]


def test_a_folder_of_other_files_is_refused(shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own/data").mkdir(parents=True)
    (tmp_path / "own/data/precious.bin").write_text("mine")
    assert publish(shop, tmp_path / "own") == 1
    assert "expected a new folder, or a published gallery" in capsys.readouterr().err
    assert publish(shop, shop / "site") == 1
    assert [path.name for path in (tmp_path / "own").rglob("*")] == ["data", "precious.bin"]


def test_an_unreadable_image_is_left_out_and_named(
    shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.move(shop.parent / "photos/secret-file4.jpg", tmp_path)
    assert publish(shop, tmp_path / "site", "--preview-size", "128") == 0
    assert "left out, as it cannot be read: photos/secret-file4.jpg" in capsys.readouterr().out
    assert 5 not in read_catalogue(tmp_path / "site")["ids"]


def test_quantised_vectors_have_nearly_the_same_cosines() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 256)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    content = quantise(vectors)
    scales = np.frombuffer(content, dtype="<f4", count=50)
    stored = np.frombuffer(content, dtype=np.int8, offset=200).reshape(50, 256) * scales[:, None]
    assert np.abs(stored @ vectors.T - vectors @ vectors.T).max() < 0.004
