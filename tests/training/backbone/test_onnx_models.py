"""Backbones of ONNX files: whatever form a graph has, what is exported gives what the graph gave."""

import json
import threading
from collections.abc import Callable, Iterator
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, numpy_helper

from export.public import export
from index.errors import InputError
from index.model.backends.onnxruntime import import_onnxruntime
from index.model.embedder import Embedder
from training.backbone.onnx_models import build_module, describe_input, find_file
from training.options.backbone_libraries import OnnxSettings
from training.public import train

SIDE, PATCH, WIDTH = 16, 4, 6
TOKENS = (SIDE // PATCH) ** 2
HALF = (0.5, 0.5, 0.5)
GIVEN = {"mean": "0.5,0.5,0.5", "std": "0.5,0.5,0.5"}
SETTINGS = OnnxSettings(**GIVEN)
CHECKED = np.random.default_rng(1).integers(0, 256, (5, SIDE, SIDE, 3), dtype=np.uint8)


def _weight(name: str, *shape: int, kind: Any = np.float32) -> TensorProto:
    generator = np.random.default_rng(len(name))
    return numpy_helper.from_array(generator.normal(size=shape).astype(kind), name)


def _save(path: Path, graph: str, *weights: TensorProto, opset: int = 17, opsets: str = "") -> Path:
    """The graph of a text, with these weights."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}{opsets}]> model {graph}')
    model.graph.initializer.extend(weights)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


KERNEL = _weight("kernel", WIDTH, 3, PATCH, PATCH)
PATCHES = "Conv <strides = [4, 4], kernel_shape = [4, 4]>"


def make_cnn(path: Path, *, kind: str = "float", batch: Any = "n", side: Any = "side", opset: int = 13) -> Path:
    """Feature maps (N, F, H, W) of (N, 3, H, W) images."""
    kernel = _weight("kernel", WIDTH, 3, PATCH, PATCH, kind=np.float16 if kind == "float16" else np.float32)
    graph = f"""({kind}[{batch}, 3, {side}, {side}] pixels) => ({kind}[{batch}, {WIDTH}, h, w] features) {{
        maps = {PATCHES} (pixels, kernel)
        features = Relu (maps)
    }}"""
    return _save(path, graph, kernel, opset=opset)


def make_vit(path: Path) -> Path:
    """Tokens (1, 1 + T, F) with a class token, of a batch of one with all shapes constant."""
    graph = f"""(float[1, 3, {SIDE}, {SIDE}] pixels) => (float[1, {1 + TOKENS}, {WIDTH}] last_hidden_state)
        <int64[3] shape = {{1, {WIDTH}, {TOKENS}}}, int64[3] class_shape = {{1, 1, {WIDTH}}}> {{
        maps = {PATCHES} (pixels, kernel)
        flat = Reshape (maps, shape)
        patches = Transpose <perm = [0, 2, 1]> (flat)
        first = Expand (class, class_shape)
        tokens = Concat <axis = 1> (first, patches)
        queries = MatMul (tokens, query)
        keys = Transpose <perm = [0, 2, 1]> (tokens)
        products = MatMul (queries, keys)
        attention = Softmax <axis = -1> (products)
        last_hidden_state = MatMul (attention, tokens)
    }}"""
    return _save(path, graph, KERNEL, _weight("class", 1, 1, WIDTH), _weight("query", WIDTH, WIDTH))


def make_tower(path: Path) -> Path:
    """A CLIP-shaped image tower: tokens, a pooled output and the embedding, which is smaller."""
    graph = f"""(float[n, 3, h, w] pixel_values) => (
        float[n, t, {WIDTH}] last_hidden_state, float[n, {WIDTH}] pooler_output, float[n, 4] image_embeds
    ) <int64[3] shape = {{0, {WIDTH}, -1}}> {{
        maps = {PATCHES} (pixel_values, kernel)
        flat = Reshape (maps, shape)
        last_hidden_state = Transpose <perm = [0, 2, 1]> (flat)
        pooler_output = ReduceMax <axes = [1], keepdims = 0> (last_hidden_state)
        image_embeds = MatMul (pooler_output, projection)
    }}"""
    return _save(path, graph, KERNEL, _weight("projection", WIDTH, 4))


def make_bytes(path: Path) -> Path:
    """uint8 (N, H, W, 3) images, normalised inside, to features (N, F)."""
    graph = f"""(uint8[n, {SIDE}, {SIDE}, 3] image) => (float[n, {SIDE * 3}] features)
        <float[3] scale = {{200, 50, 90}}> {{
        floats = Cast <to = 1> (image)
        small = Div (floats, scale)
        mean = ReduceMean <axes = [1], keepdims = 0> (small)
        features = Flatten (mean)
    }}"""
    return _save(path, graph)


def make_keras(path: Path) -> Path:
    """float32 (N, H, W, 3) images of values in 0..255, which the model normalises, to maps (N, H, W, F)."""
    graph = f"""(float[n, {SIDE}, {SIDE}, 3] image) => (float[n, 4, 4, 5] features) <float[1] scale = {{127.5}}> {{
        small = Div (image, scale)
        first = Transpose <perm = [0, 3, 1, 2]> (small)
        maps = {PATCHES} (first, kernel)
        features = Transpose <perm = [0, 2, 3, 1]> (maps)
    }}"""
    return _save(path, graph, _weight("kernel", 5, 3, PATCH, PATCH))


def _expected(path: Path, output: str, pool: Callable[[Any], Any] = lambda values: values) -> Any:
    """Unit features by the original, one image at a time."""
    session = import_onnxruntime().InferenceSession(path)
    [given] = session.get_inputs()
    rows = []
    for image in CHECKED:
        pixels: Any = image[None]
        if given.type != "tensor(uint8)":
            numbers = np.float16 if given.type == "tensor(float16)" else np.float32
            pixels = ((image.astype(np.float32) / 255 - 0.5) / 0.5).transpose(2, 0, 1)[None].astype(numbers)
        rows.append(pool(session.run([output], {given.name: pixels})[0].astype(np.float32))[0])
    found = np.stack(rows)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def _first(tokens: Any) -> Any:
    return tokens[:, 0]


def _mean_map(maps: Any) -> Any:
    return maps.mean(axis=(2, 3))


FORMS: list[Any] = [
    pytest.param(make_cnn, "features", _mean_map, {}, id="feature maps of any size", marks=pytest.mark.slow),
    pytest.param(
        lambda path: make_cnn(path, kind="float16"), "features", _mean_map, {}, id="float16", marks=pytest.mark.slow
    ),
    pytest.param(make_vit, "last_hidden_state", _first, {}, id="class token, a batch of one"),
    pytest.param(
        make_vit,
        "last_hidden_state",
        lambda tokens: tokens[:, 1:].mean(axis=1),
        {"tokens": "mean"},
        id="mean of patches",
        marks=pytest.mark.slow,
    ),
    pytest.param(make_tower, "image_embeds", lambda found: found, {}, id="the embedding of three outputs"),
    pytest.param(
        make_tower,
        "pooler_output",
        lambda found: found,
        {"output": "pooler_output"},
        id="a named output",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("make", "output", "pool", "options"), FORMS)
def test_an_exported_file_gives_what_the_graph_gave(
    tmp_path: Path, make: Any, output: str, pool: Any, options: dict[str, Any]
) -> None:
    path, out = make(tmp_path / "foreign.onnx"), tmp_path / "model.onnx"
    report = export(out=out, backbone=str(path), crop=SIDE, resize=SIDE, **GIVEN, **options)
    assert report.min_cosine is not None
    found = Embedder(out).embed_batch(CHECKED)
    assert (found * _expected(path, output, pool)).sum(axis=1).min() > 0.9999
    assert onnx.load(out).opset_import[0].domain == ""
    assert len(onnx.load(out).opset_import) == 1


def test_a_model_of_bytes_normalises_itself(tmp_path: Path) -> None:
    path, out = make_bytes(tmp_path / "bytes.onnx"), tmp_path / "model.onnx"
    export(out=out, backbone=str(path))
    found = Embedder(out).embed_batch(CHECKED)
    assert (found * _expected(path, "features")).sum(axis=1).min() > 0.99999


@pytest.mark.slow
def test_a_model_of_values_up_to_255_is_given_these(tmp_path: Path) -> None:
    path, out = make_keras(tmp_path / "keras.onnx"), tmp_path / "model.onnx"
    scale = str(1 / 255)
    export(out=out, backbone=str(path), mean="0,0,0", std=f"{scale},{scale},{scale}")
    session = import_onnxruntime().InferenceSession(path)
    expected = session.run(None, {"image": CHECKED.astype(np.float32)})[0].mean(axis=(1, 2))
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert (Embedder(out).embed_batch(CHECKED) * expected).sum(axis=1).min() > 0.99999


@pytest.mark.slow
def test_both_views_pass_one_graph_whose_weights_are_stored_once(tmp_path: Path) -> None:
    path, out = make_cnn(tmp_path / "foreign.onnx"), tmp_path / "model.onnx"
    export(out=out, backbone=str(path), crop=SIDE, resize=2 * SIDE, view="both", **GIVEN)
    kernels = [one for one in onnx.load(out).graph.initializer if list(one.dims) == [WIDTH, 3, PATCH, PATCH]]
    assert len(kernels) == 1


@pytest.mark.slow
def test_weights_beside_the_file_are_packed_into_the_exported_one(tmp_path: Path) -> None:
    path, out = make_cnn(tmp_path / "whole.onnx"), tmp_path / "model.onnx"
    apart = tmp_path / "apart"
    apart.mkdir()
    onnx.save(onnx.load(path), apart / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    export(out=out, backbone=str(apart / "model.onnx"), crop=SIDE, **GIVEN)
    assert (Embedder(out).embed_batch(CHECKED) * _expected(path, "features", _mean_map)).sum(axis=1).min() > 0.9999
    (apart / "weights").unlink()
    with pytest.raises(InputError, match=r"model\.onnx: its weights lie in other files"):
        build_module(str(apart / "model.onnx"), "pretrained", seed=0, settings=SETTINGS)


STATED = {"image_mean": HALF, "image_std": HALF}
PREPROCESSORS = {
    "vit": (STATED | {"size": {"height": 16, "width": 16}, "resample": 2}, (16, 16, "bilinear", HALF, HALF)),
    "clip": (
        {
            "size": {"shortest_edge": 24},
            "crop_size": {"height": 16, "width": 16},
            "do_center_crop": True,
            "image_mean": [0.4, 0.5, 0.6],
            "image_std": [0.2, 0.3, 0.4],
            "resample": 3,
        },
        (24, 16, "bicubic", (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
    ),
    "convnext": (STATED | {"size": {"shortest_edge": 16}, "crop_pct": 0.5}, (32, 16, "bilinear", HALF, HALF)),
    "large convnext": (
        STATED | {"size": {"shortest_edge": 384}, "crop_pct": 0.875},
        (384, 384, "bilinear", HALF, HALF),
    ),
    "align": (
        STATED | {"size": 16, "rescale_factor": 1 / 127.5, "rescale_offset": True, "do_normalize": False},
        (16, 16, "bilinear", HALF, HALF),
    ),
    "efficientnet": (
        {"size": 16, "include_top": True, "image_mean": HALF, "image_std": HALF},
        (16, 16, "bilinear", HALF, (0.25, 0.25, 0.25)),
    ),
    "old": ({"size": 16, "do_normalize": False}, (16, 16, "bilinear", (0, 0, 0), (1, 1, 1))),
    "no rescaling": (
        {"size": 16, "do_rescale": False, "image_mean": [127.5] * 3, "image_std": [127.5] * 3},
        (16, 16, "bilinear", HALF, HALF),
    ),
    "timm": (
        {
            "pretrained_cfg": {
                "input_size": [3, 16, 16],
                "crop_pct": 0.5,
                "mean": HALF,
                "std": HALF,
                "interpolation": "bicubic",
            }
        },
        (32, 16, "bicubic", HALF, HALF),
    ),
}


@pytest.mark.parametrize("name", PREPROCESSORS)
def test_the_preprocessor_file_beside_a_model_says_how_images_are_prepared(tmp_path: Path, name: str) -> None:
    values, expected = PREPROCESSORS[name]
    (tmp_path / "onnx").mkdir()
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    found = describe_input(str(make_cnn(tmp_path / "onnx" / "model.onnx")))
    assert (found.resize, found.crop, found.interpolation) == expected[:3]
    np.testing.assert_allclose([found.mean, found.std], expected[3:])


class _Hub(BaseHTTPRequestHandler):
    """A repository `org/name` as the Hugging Face Hub serves it, and one without a model."""

    files: ClassVar[dict[str, bytes]] = {}
    sha: ClassVar[str] = 40 * "a"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/org/name/tree"):
            listed = [
                {"type": "file", "path": name, "size": len(data), "oid": sha1(data).hexdigest()}
                for name, data in self.files.items()
            ]
            self._send(json.dumps(listed).encode())
        elif path.startswith("/api/models/org/name"):
            siblings, card = [{"rfilename": name} for name in self.files], {"license": "mit"}
            self._send(json.dumps({"id": "org/name", "sha": self.sha, "siblings": siblings, "cardData": card}).encode())
        elif (name := path.removeprefix(f"/org/name/resolve/{self.sha}/")) in self.files:
            self._send(self.files[name], ETag=f'"{sha1(self.files[name]).hexdigest()}"', **{"X-Repo-Commit": self.sha})
        else:
            self._send(b"{}", 404, **{"X-Error-Code": "RepoNotFound"})

    def _send(self, data: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """The files of the repository `org/name` of a Hub with an empty cache; tests add to them."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(_Hub, "files", {})
        find_file.cache_clear()
        yield _Hub.files
        server.shutdown()


def test_a_hubs_repository_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="training.backbone")
    hub["README.md"] = b"a model"
    with pytest.raises(InputError, match="the repository has no ONNX image model"):
        describe_input("hf:org/name")
    onnx.save(
        onnx.load(make_cnn(tmp_path / "whole.onnx")),
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="model.onnx_data",
        size_threshold=0,
    )
    hub |= {f"onnx/{name}": (tmp_path / name).read_bytes() for name in ("model.onnx", "model.onnx_data")}
    hub["preprocessor_config.json"] = json.dumps(STATED | {"size": 32}).encode()
    monkeypatch.setattr(_Hub, "sha", 40 * "b")
    assert describe_input("hf:org/name").crop == 32
    assert [one.message for one in caplog.records] == ["hf:org/name: licence mit (model card org/name)"]
    assert build_module("hf:org/name", "pretrained", seed=0)[1] == WIDTH
    with pytest.raises(InputError, match="hf:org/other: the Hugging Face Hub has no such repository"):
        describe_input("hf:org/other")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")  # nobody listens there
    with pytest.raises(InputError, match=r"hf:org/third: it could not be downloaded .* name the file"):
        describe_input("hf:org/third")


IMAGES, ROWS = "float[n, 3, h, w] pixels", "float[n, 3, 1, 1] features"


def _graph(text: str, **options: Any) -> Callable[[Path], Path]:
    return lambda path: _save(path, text, **options)


# 32 tokens are neither a square of patches nor one with a class token and registers.
QUERIES = f"""(float[3, 3, {SIDE}, {SIDE}] pixels) => (float[3, 32, 3] features)
    <int64[4] sizes = {{3, 3, 4, 8}}, int64[3] shape = {{-1, 32, 3}}> {{
    small = Resize (pixels, , , sizes)
    features = Reshape (small, shape)
}}"""
BRANCH = f"""({IMAGES}) => ({ROWS}) {{
    true = Constant <value = bool {{1}}> ()
    features = If (true) <
        then_branch = one () => (float[n, 3, 1, 1] a) {{ a = GlobalAveragePool (pixels) }},
        else_branch = two () => (float[n, 3, 1, 1] b) {{ b = GlobalMaxPool (pixels) }}
    >
}}"""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            _graph(f"({IMAGES}, float[n, 3, h, w] other) => ({ROWS}) {{ features = Add (pixels, other) }}"),
            r"it has 2 inputs \(pixels .*, other .*\), expected one for images",
        ),
        (
            _graph(f"(float[n, c, h, w] pixels) => ({ROWS}) {{ features = GlobalAveragePool (pixels) }}"),
            "does not say where its three channels are",
        ),
        (
            _graph(f"({IMAGES}) => ({ROWS}) {{ features = my.company.Magic (pixels) }}", opsets=', "my.company": 1'),
            r"an operation outside ONNX's standard domain: my\.company\.Magic",
        ),
        (
            _graph(f"({IMAGES}) => ({ROWS}) {{ roots = Sqrt (pixels) features = GlobalAveragePool (roots) }}"),
            "its output features is not finite",
        ),
        (
            _graph(f"({IMAGES}) => (float[n, 3, 1, 1] logits) {{ logits = GlobalAveragePool (pixels) }}"),
            r"no output of features, .* --output NAME",
        ),
        (_graph(QUERIES), "it gives 32 tokens, of which it cannot be told"),
        (_graph(BRANCH), "control flow: .*; export it"),
        (
            _graph(
                f"({IMAGES}) => (float[n, 3, 1, 1] one, float[n, 3, 1, 1] two) "
                "{ one = GlobalAveragePool (pixels) two = GlobalMaxPool (pixels) }"
            ),
            r"it has several outputs .*: say which by `retrieval export --output NAME`",
        ),
        (lambda path: path, "no such ONNX file"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name(tmp_path: Path, make: Any, message: str) -> None:
    path = make(tmp_path / "model.onnx")
    with pytest.raises(InputError, match=message) as raised:
        build_module(str(path), "pretrained", seed=0, settings=SETTINGS)
    assert "model.onnx" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"nothing says how its images are normalised: put its preprocessor_config\.json beside it"),
        ({"mean": "0.5,0.5", "std": "1,1,1"}, r"--mean must be three numbers such as 0\.5,0\.5,0\.5, got '0\.5,0\.5'"),
        ({**GIVEN, "output": "logits"}, r"no output logits of floats; there is features \(N, 6, \d+, \d+\)"),
        ({**GIVEN, "weights": "none"}, "an ONNX file has its weights inside"),
        ({**GIVEN, "pooling": "gem"}, "--pooling gem reads the feature maps"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    path = make_cnn(tmp_path / "model.onnx")
    with pytest.raises(InputError, match=message):
        export(out=tmp_path / "out.onnx", backbone=str(path), **options)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"tokenizer_class": "BertTokenizer"}', '{"size": "large", "image_mean": 1, "image_std": 2}']
)
def test_a_preprocessor_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(InputError, match=r"preprocessor_config\.json"):
        describe_input(str(make_cnn(tmp_path / "model.onnx")))


@pytest.mark.slow
def test_a_head_trained_on_an_onnx_backbone_becomes_one_file(tmp_path: Path, pictures: Path, cache: Path) -> None:
    path = make_cnn(tmp_path / "backbone.onnx")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(STATED | {"size": 32}))
    run = tmp_path / "run"
    train(pictures, run, backbone=str(path), cache=cache, method="proxy-nca", select="trained", head_steps=5)
    path.unlink()  # the run has all of it
    export(run, tmp_path / "model.onnx")
    embedder = Embedder(tmp_path / "model.onnx")
    assert embedder.contract.backbone == "backbone.onnx"
    assert embedder.contract.preprocess.mean == HALF
    with pytest.raises(InputError, match="cannot be fine-tuned"):
        train(pictures, tmp_path / "other", backbone=str(make_cnn(path)), cache=cache, finetune="last-1")
