"""The exported file: its contract, its graph, what it leaves behind, and when it is not written at all."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from export.exports import export_run, export_untrained
from export.public import ExportConfig
from export.to_onnx import MIN_COSINE, ExportedModel, check_parity, export_model
from index.errors import InputError, ParityError, RunError
from index.images.image_files import read_image
from index.images.preprocess import PreprocessConfig, preprocess_image
from index.model.backends.onnxruntime import import_onnxruntime
from index.model.contract import METADATA_KEY, ModelContract
from index.model.embedder import Embedder
from tests.models import read_pixels
from tests.photos import KINDS, read_photo
from tests.training.conftest import BACKBONE, FinishedRun, make_config, make_machine
from tests.training.runs import InterruptionError, interrupt_at
from training.backbone.backbones import load_backbone
from training.backbone.graphs import PixelModel
from training.head.embedding_heads import RawHead
from training.run.run_folder import RunFolder
from training.run.train import train

SMALL = PreprocessConfig(resize=40, crop=32)


def _random_images(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, size=(count, 32, 32, 3), dtype=np.uint8)


def _torch_model(run: Path) -> PixelModel:
    folder = RunFolder.open(run)
    backbone, head, _ = folder.load_trained()
    untrained = folder.load_untrained_head()
    return PixelModel(backbone.module, head, untrained, preprocess=folder.preprocess()).eval()


def test_the_export_is_one_file(exported: ExportedModel) -> None:
    assert [path.name for path in Path(exported.model).parent.iterdir()] == ["model.onnx"]
    model = onnx.load(exported.model, load_external_data=False)
    assert all(tensor.data_location == onnx.TensorProto.DEFAULT for tensor in model.graph.initializer)


@pytest.mark.parametrize("count", [1, 17])
def test_any_number_of_uint8_images_gives_unit_float32_rows(exported: ExportedModel, count: int) -> None:
    session = import_onnxruntime().InferenceSession(exported.model, providers=["CPUExecutionProvider"])
    (images,), (embeddings, _) = session.get_inputs(), session.get_outputs()
    assert (images.type, images.shape[1:]) == ("tensor(uint8)", [32, 32, 3])
    assert (embeddings.type, embeddings.shape[1:]) == ("tensor(float)", [8])
    assert not isinstance(images.shape[0], int)
    rows, untrained = session.run(None, {images.name: _random_images(count)})
    assert (rows.shape, untrained.shape) == ((count, 8), (count, 47))
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)


def test_the_contract_is_the_runs(exported: ExportedModel, finished_run: FinishedRun) -> None:
    contract = Embedder(Path(exported.model)).contract
    assert contract == ModelContract(
        backbone=BACKBONE,
        method="spa",
        embedding_dim=8,
        preprocess=SMALL,
        run_id=RunFolder.open(finished_run.path).run_id,
        class_count=4,
        precision="float32",
        untrained_dim=47,  # what 48 images span
    )
    assert contract.run_id


def test_no_position_is_computed_on_the_way_to_an_embedding(exported: ExportedModel) -> None:
    operations = {node.op_type for node in onnx.load(exported.model).graph.node}
    assert not operations & {"Gather", "Range"}


def test_the_confidence_module_and_the_proxies_stay_behind(exported: ExportedModel) -> None:
    model = onnx.load(exported.model)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    constants = [
        tuple(attribute.t.dims) for node in model.graph.node for attribute in node.attribute if attribute.HasField("t")
    ]
    every_shape = {*shapes.values(), *constants}
    assert not [name for name in shapes for word in ("confiden", "prox", "reduce", "classify") if word in name.lower()]
    proxies, hidden, classify = (4, 8), (16, 512), (4, 16)
    for shape in (proxies, hidden, classify):
        assert shape not in every_shape
        assert shape[::-1] not in every_shape
    assert {(8, 512), (512, 8)} & every_shape, "the embedding head is there"
    assert sum(np.prod(shape) for shape in shapes.values()) < 1.05 * sum(
        tensor.numel() for tensor in load_backbone(BACKBONE, "none").module.state_dict().values()
    )


def test_the_file_says_nothing_of_the_machine_that_wrote_it(exported: ExportedModel, finished_run: FinishedRun) -> None:
    data = Path(exported.model).read_bytes()
    for word in (str(Path.cwd()), str(finished_run.path), str(Path.home()) + "/", "site-packages", ".py"):
        assert word.encode() not in data
    assert [entry.key for entry in onnx.load(exported.model).metadata_props] == [METADATA_KEY]


def _draw_formats(folder: Path) -> list[Path]:
    """Real images in the formats that decoders disagree on."""
    picture = read_photo(KINDS[2], 0, size=96).crop((0, 0, 96, 70))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(folder / "rotated.jpg", exif=exif)
    picture.convert("CMYK").save(folder / "cmyk.jpg")
    picture.convert("L").save(folder / "grey.png")
    picture.convert("P").save(folder / "palette.gif")
    picture.save(folder / "web.webp")
    alpha = picture.convert("RGBA")
    alpha.putalpha(Image.linear_gradient("L").resize(picture.size))
    alpha.save(folder / "alpha.png")
    sixteen = (np.asarray(picture.convert("L")).astype(np.uint16) * 257 + 3).clip(0, 65535)
    Image.fromarray(sixteen).save(folder / "sixteen.png")
    large = io.BytesIO()
    picture.resize((900, 700)).save(large, format="JPEG")  # large enough for JPEG's reduced decode
    (folder / "large.jpg").write_bytes(large.getvalue())
    return sorted(folder.iterdir())


def test_training_and_serving_embed_alike(exported: ExportedModel, finished_run: FinishedRun, tmp_path: Path) -> None:
    embedder, model = Embedder(Path(exported.model)), _torch_model(finished_run.path)
    paths = _draw_formats(tmp_path)
    assert len(paths) == 8
    for path in paths:
        image = read_image(path, target_side=SMALL.resize)
        training = preprocess_image(image, SMALL)
        serving = read_pixels(embedder, path)
        assert np.array_equal(training, serving), path.name
        with torch.inference_mode():
            expected = model(torch.from_numpy(serving.copy())[None])[0].numpy()[0]
        served = embedder.embed_image(image, name=path.name)
        assert float(served @ expected) >= 0.99999, path.name
    rotated = preprocess_image(Image.open(tmp_path / "rotated.jpg").convert("RGB"), SMALL)
    assert not np.array_equal(rotated, read_pixels(embedder, tmp_path / "rotated.jpg")), "EXIF is applied"


def test_a_model_that_drifts_is_refused(exported: ExportedModel, finished_run: FinishedRun) -> None:
    model, path, images = _torch_model(finished_run.path), Path(exported.model), _random_images(5)
    assert check_parity(model, path, images, name="m.onnx") >= MIN_COSINE
    with torch.no_grad():
        model.parts.head[0].linear.weight += 0.01 * torch.randn(8, 512, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ParityError, match=r"m\.onnx was not written.*0\.99999 is required") as caught:
        check_parity(model, path, images, name="m.onnx")
    assert 0 < caught.value.min_cosine < MIN_COSINE


class _Fused(torch.nn.Module):
    """A network whose fused way has an operator that the exporter does not know."""

    def __init__(self, *, fused_attn: bool | None) -> None:
        super().__init__()
        if fused_attn is not None:
            self.fused_attn = fused_attn

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = images.mean(dim=(2, 3)) + 1
        return features + 0 * torch.lgamma(features).digamma() if getattr(self, "fused_attn", True) else features


class _Unnormalised(torch.nn.Module):
    """Rows of length 2: as an inner product it agrees with everything."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return 2 * torch.nn.functional.normalize(features)


class _Broken(torch.nn.Module):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features / 0


@pytest.mark.parametrize("head", [_Unnormalised(), _Broken()])
def test_rows_that_are_no_unit_vectors_are_refused_and_leave_the_file(tmp_path: Path, head: torch.nn.Module) -> None:
    out = tmp_path / "model.onnx"
    out.write_bytes(b"the previous model")
    model = PixelModel(_Fused(fused_attn=False), head, preprocess=SMALL)
    contract = ModelContract(backbone="mean", method="raw", embedding_dim=3, preprocess=SMALL)
    with pytest.raises(ParityError, match="was not written"):
        export_model(model, contract=contract, out=out, check_images=_random_images(3))
    assert out.read_bytes() == b"the previous model"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("name", ["model", "model.onnx.txt", "folder.onnx", "file/model.onnx"])
def test_an_output_that_cannot_be_written_is_named(finished_run: FinishedRun, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "file").touch()
    said = r"model\.onnx: cannot be written" if "/" in name else r"expected the name of a file that ends in \.onnx"
    with pytest.raises(InputError, match=said):
        export_run(finished_run.path, tmp_path / name)


def test_a_run_that_is_not_finished_is_refused(pictures: Path, cache: Path, tmp_path: Path) -> None:
    run, watcher = tmp_path / "run", interrupt_at("confidence", 1)
    with pytest.raises(InterruptionError):
        train(pictures, run, config=make_config(), machine=make_machine(cache), watcher=watcher)
    with pytest.raises(RunError, match="training is not finished; continue it with"):
        export_run(run, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_a_run_without_its_check_images_cannot_be_exported(pictures: Path, cache: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(pictures, run, config=make_config(head_epochs=1), machine=make_machine(cache))
    for path in (run / "parity").iterdir():
        path.unlink()
    with pytest.raises(InputError, match=r"an export is verified on the run.s parity"):
        export_run(run, tmp_path / "model.onnx")


def export_backbone(out: Path, **options: Any) -> ExportedModel:
    """The small backbone with random weights, as it is unless options say otherwise."""
    return export_untrained(out, ExportConfig(backbone=BACKBONE, weights="none", resize=40, crop=32, **options))


@pytest.fixture(scope="module")
def raw_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The backbone as it is. Not to be written to."""
    return Path(export_backbone(tmp_path_factory.mktemp("raw") / "raw.onnx").model)


def test_raw_features_export_without_any_images(raw_model: Path) -> None:
    embedder = Embedder(raw_model)
    contract = embedder.contract
    assert (contract.method, contract.embedding_dim, contract.run_id, contract.class_count) == ("raw", 512, "", 0)
    model = PixelModel(load_backbone(BACKBONE, "none").module, RawHead(512), preprocess=SMALL).eval()
    images = _random_images(4)
    with torch.inference_mode():
        np.testing.assert_allclose(embedder.embed_batch(images), model(torch.from_numpy(images)), atol=1e-5)
    assert not (raw_model.parent / "cache").exists()


def test_whitening_needs_no_labels_and_gives_decorrelated_rows(pictures: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, path in enumerate(sorted(pictures.rglob("*.jpg"))):
        (flat / f"{number}.jpg").write_bytes(path.read_bytes())
    (flat / "notes.txt").write_text("no image")
    report = export_backbone(tmp_path / "white.onnx", whiten=flat, embedding_dim=5)
    contract = Embedder(Path(report.model)).contract
    assert (contract.method, contract.embedding_dim) == ("pca-half-whitened", 5)
    rows = embed_photos(Path(report.model), flat)
    moments = rows.T @ rows / len(rows)  # of unit rows: the diagonal sums to one
    assert np.abs(moments - np.eye(5) / 5).max() < 0.1


def test_whitening_on_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("no image")
    with pytest.raises(InputError, match="none of the 1 files is a readable image"):
        export_backbone(tmp_path / "white.onnx", whiten=tmp_path / "folder")


def embed_photos(model: Path, pictures: Path) -> np.ndarray:
    embedder = Embedder(model)
    return embedder.embed_batch(np.stack([read_pixels(embedder, path) for path in sorted(pictures.rglob("*.jpg"))]))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["raw", "pca", "pca-half-whitened"])
def test_an_untrained_run_exports_the_backbone(pictures: Path, raw_model: Path, tmp_path: Path, method: str) -> None:
    precision = "float32" if method == "pca" else "auto"  # as the export of a backbone chooses it
    machine = make_machine(tmp_path / "cache", precision=precision)
    config = make_config(method=method, embedding_dim=5)
    train(pictures, tmp_path / "run", config=config, machine=machine)
    report = export_run(tmp_path / "run", tmp_path / "run.onnx")
    contract = Embedder(tmp_path / "run.onnx").contract
    assert report.min_cosine >= MIN_COSINE
    assert (contract.method, contract.class_count, contract.untrained_dim) == (method, 4, 0)
    assert contract.embedding_dim == report.embedding_dim == (512 if method == "raw" else 5)
    rows = embed_photos(tmp_path / "run.onnx", pictures)
    if method == "pca":  # no export of its own: the first axes of the images' normalised features
        features = embed_photos(raw_model, pictures).astype(np.float64)
        centred = features - features.mean(axis=0)
        _, _, axes = np.linalg.svd(centred, full_matrices=False)
        expected = centred @ axes[:5].T
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(np.abs(rows), np.abs(expected), atol=0.01)
        return
    backbone = raw_model
    if method == "pca-half-whitened":
        report = export_backbone(tmp_path / "b.onnx", whiten=pictures, embedding_dim=5)
        backbone = Path(report.model)
    np.testing.assert_allclose(rows, embed_photos(backbone, pictures), atol=1e-4)


@pytest.mark.slow
def test_attention_that_the_exporter_does_not_know_fused_is_spelt_out(tmp_path: Path) -> None:
    network = _Fused(fused_attn=True)
    model = PixelModel(network, RawHead(3), preprocess=SMALL).eval()
    contract = ModelContract(backbone="fused", method="raw", embedding_dim=3, preprocess=SMALL)
    images = np.random.default_rng(0).integers(0, 256, (3, SMALL.crop, SMALL.crop, 3), dtype=np.uint8)
    report = export_model(model, contract=contract, out=tmp_path / "m.onnx", check_images=images)
    assert report.min_cosine >= MIN_COSINE
    assert network.fused_attn


def test_a_network_that_onnx_has_no_words_for_is_refused_by_name(tmp_path: Path) -> None:
    model = PixelModel(_Fused(fused_attn=None), RawHead(3), preprocess=SMALL).eval()
    contract = ModelContract(backbone="odd", method="raw", embedding_dim=3, preprocess=SMALL)
    images = np.zeros((1, SMALL.crop, SMALL.crop, 3), dtype=np.uint8)
    with pytest.raises(InputError, match=r"torch cannot write --backbone odd as ONNX: .*; choose another"):
        export_model(model, contract=contract, out=tmp_path / "m.onnx", check_images=images)
    assert not (tmp_path / "m.onnx").exists()
