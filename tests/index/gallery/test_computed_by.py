"""A gallery remembers which runtime computed its vectors, and answers with no other that differs."""

import json
from pathlib import Path

import pytest

from index.errors import GalleryMismatchError, InputError
from index.gallery.computed_by import join_runtimes, require_same_output
from index.gallery.gallery import Gallery
from index.gallery.info import read_info
from index.gallery.selection import Selection
from index.gallery.verify import verify_gallery
from index.model.backends.backend import USUAL_BACKEND, VARIABLE
from index.model.embedder import Embedder
from index.versions.manifest import MANIFEST_NAME, Manifest
from index.versions.versions import find_version, set_current
from index.writing.build import add_to_gallery, build_gallery, remove_from_gallery
from index.writing.copying import copy_gallery, tune_gallery
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import stopped_at


@pytest.fixture(autouse=True)
def compared_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of runtimes is not kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def by_openvino(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A gallery that was built with OpenVINO; what comes after is asked for nothing."""
    monkeypatch.setenv(VARIABLE, "openvino")
    build_gallery(model_path=tiny_model, sources=[draw_folder(tmp_path / "images")], out=tmp_path / "gallery")
    monkeypatch.delenv(VARIABLE)
    return tmp_path / "gallery"


def read_manifest(gallery: Path) -> dict:
    return json.loads((find_version(gallery).folder / MANIFEST_NAME).read_text())


def test_another_one_is_remembered_and_asked_with(by_openvino: Path) -> None:
    manifest = read_manifest(by_openvino)
    runtime = manifest["runtime"]
    assert (runtime["backend"], runtime["precision"]) == ("openvino", "float32")
    assert runtime["agreement"] > 0.999
    assert read_info(by_openvino)["runtime"] == runtime
    assert Gallery.open(by_openvino).embedder.backend == "openvino"
    assert verify_gallery(by_openvino).problems == []


def test_an_agreeing_runtime_may_add(by_openvino: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = read_manifest(by_openvino)["runtime"]
    monkeypatch.setenv(VARIABLE, USUAL_BACKEND)
    gallery = Gallery.open(by_openvino)
    assert gallery.embedder.backend == USUAL_BACKEND
    first = gallery.image(int(gallery.ids[0]))
    assert gallery.search(tmp_path / "images" / first.path, k=1)[0].id == first.id
    (tmp_path / "more").mkdir()
    draw_image((10, 20, 30), seed=9).save(tmp_path / "more" / "new.png")
    assert add_to_gallery(by_openvino, [str(tmp_path / "more")]).new_images == 1
    assert read_manifest(by_openvino)["runtime"] == runtime
    monkeypatch.setattr("index.model.embedder.open_backend", None)  # a copy needs no runtime
    copy_gallery(by_openvino, tmp_path / "copy")
    assert read_manifest(tmp_path / "copy")["runtime"] == runtime


def test_no_embedding_keeps_the_runtime(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, out = draw_folder(tmp_path / "images"), tmp_path / "gallery"
    build_gallery(model_path=tiny_model, sources=[images], out=out)
    monkeypatch.setenv(VARIABLE, "openvino")
    tune_gallery(out)
    assert remove_from_gallery(out, selection=Selection(ids=(int(Gallery.open(out).ids[0]),))).removed == 1
    assert read_manifest(out)["runtime"] is None
    (tmp_path / "more").mkdir()
    draw_image((10, 20, 30), seed=9).save(tmp_path / "more" / "new.png")
    add_to_gallery(out, [str(tmp_path / "more")])
    assert read_manifest(out)["runtime"]["backend"] == "openvino"


@pytest.mark.parametrize("agreement", [0.999, 0.95])
def test_unfinished_work_is_gone_on_with_in_a_runtime_that_agrees(
    agreement: float, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, out = draw_folder(tmp_path / "images"), tmp_path / "gallery"
    with monkeypatch.context() as patched:
        patched.setenv(VARIABLE, "openvino")
        with stopped_at("writing.publishing._write_version"):
            build_gallery(model_path=tiny_model, sources=[images], out=out)
    path = out / "building" / "plan.json"
    plan = json.loads(path.read_text())
    plan["runtime"]["agreement"] = agreement
    path.write_text(json.dumps(plan))
    if agreement == 0.95:
        with pytest.raises(GalleryMismatchError, match=r"runtime is openvino float32.*use --backend openvino"):
            build_gallery(model_path=tiny_model, sources=[images], out=out)
        return
    assert build_gallery(model_path=tiny_model, sources=[images], out=out).new_images == 0
    assert read_manifest(out).get("runtime") == plan.get("runtime")


def test_a_differing_runtime_is_refused(by_openvino: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, manifest = find_version(by_openvino).folder, read_manifest(by_openvino)
    manifest["runtime"]["agreement"] = 0.95  # as if it had agreed less with the usual one
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest))
    set_current(by_openvino, folder)
    assert Gallery.open(by_openvino).embedder.backend == "openvino"
    monkeypatch.setenv(VARIABLE, USUAL_BACKEND)
    problem = r"runtime is openvino float32, but onnxruntime .* \(a cosine of 0\.950 .*use --backend openvino"
    gallery = Gallery.open(by_openvino)
    with pytest.raises(GalleryMismatchError, match=problem):
        gallery.search(draw_image((10, 20, 30), seed=9))
    assert gallery.search(gallery.vector(int(gallery.ids[0])), k=1)  # which asks no runtime
    with pytest.raises(GalleryMismatchError, match=problem):
        add_to_gallery(by_openvino, [str(tmp_path / "images")])


def test_an_agreement_that_is_no_number_is_none(tiny_model: Path) -> None:
    embedder = Embedder(tiny_model, threads=1, backend="openvino")
    require_same_output(None, embedder, gallery=tiny_model)
    embedder.agreement = float("nan")
    with pytest.raises(GalleryMismatchError, match="runtime is onnxruntime, but openvino"):
        require_same_output(None, embedder, gallery=tiny_model)


def test_vectors_of_two_runtimes_are_those_of_less_agreement() -> None:
    one = {"backend": "openvino", "precision": "bfloat16", "agreement": 0.99}
    two = {"backend": "openvino", "precision": "int8", "agreement": 0.995}
    assert join_runtimes(one, two) == join_runtimes(two, one) == join_runtimes(one, None) == one
    assert join_runtimes(None, None) is None


def test_a_manifest_whose_runtime_cannot_be_right_is_refused(by_openvino: Path) -> None:
    for runtime in ({}, "openvino", {"backend": 1, "precision": "a", "agreement": 1.0}):
        content = json.dumps({**read_manifest(by_openvino), "runtime": runtime}).encode()
        with pytest.raises(InputError, match=r"runtime must|backend must"):
            Manifest.parse(content)
