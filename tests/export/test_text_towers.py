"""Text towers: the exported files give the tokens and vectors of the original, and a gallery keeps them."""

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import open_clip
import pytest
import torch
from onnx import numpy_helper
from open_clip.tokenizer import get_clean_fn
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from export.public import export
from index.errors import GalleryDamagedError, InputError, MissingDependencyError, ModelFileError
from index.gallery.gallery import Gallery
from index.gallery.info import read_info
from index.gallery.verify import verify_gallery
from index.model.text_encoder import TextEncoder
from index.repair.repair import repair_gallery
from index.writing.build import add_to_gallery, build_gallery
from index.writing.copying import copy_gallery
from index.writing.shard_plan import Shard
from index.writing.sharding import embed_shard, merge_shards, open_shards
from tests.training.backbone.test_onnx_models import GIVEN, SIDE, hub, make_tower
from tests.training.small_towers import CLIP, SIGLIP

__all__ = ["hub"]
pytestmark = pytest.mark.usefixtures("small_towers")
TOKENS = 16
HARD = """red shoe|A photo of a CAT.||  two \t spaces\n|🙂🐈‍⬛ 👩‍👩‍👧|🇩🇪🇫🇷|مرحبا بالعالم|שלום עולם|हिन्दी|ภาษาไทย|日本語
|Ünïcödé Çafé|cafe\u0301 N\u0303|12345 67,89 3.14|don't I'LL you've they're|!!! ??? ... ###|a_b-c/d\\e|“curly” ‘quotes’
|ｆｕｌｌ　ｗｉｄｔｈ|ﬁne ﬂow|ΣΊΣΥΦΟΣ ΣΑΣ|İstanbul|straße ẞ|Ⅷ ½ ² ™|nbsp\u00a0em\u2003|zero\u200bwidth|control\x07"""
LONG = ["word " * 100, "long ünï " * 90, "x" * 500, "🙂" * 60]
DRAWN = [" ".join(random.Random(n).choices(HARD.replace("|", " ").split(), k=1 + n)) for n in range(69)]
TEXTS = [*HARD.split("|"), *LONG, *DRAWN]
Exported = tuple[Path, Any]


def export_with_weights(name: str, folder: Path) -> Exported:
    """The exported file of a model with random weights, and the model in torch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = open_clip.create_model(name, force_custom_text=name == SIGLIP).eval()
    torch.save(network.state_dict(), folder / "weights.pt")
    out, weights = folder / "clip.onnx", str(folder / "weights.pt")
    export(out=out, backbone=f"open_clip:{name}", weights=weights, with_text=True)
    return out, network


@pytest.fixture(scope="module")
def clip(small_towers: None, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_with_weights(CLIP, tmp_path_factory.mktemp("clip"))


def compare(model: Path, network: Any, tokens: torch.Tensor) -> None:
    encoder = TextEncoder.open(model)
    assert np.array_equal([encoder.tokenize(text)[0][0] for text in TEXTS], tokens.numpy())
    expected = network.encode_text(tokens, normalize=True).detach().numpy()
    np.testing.assert_allclose([encoder.embed(text) for text in TEXTS], expected, atol=1e-5)


def make_tokenizer(end: int = 1) -> Tokenizer:
    """A tokenizer of three words, or of letters too, with this id for the end of a text: CLIP's has the highest."""
    vocabulary = ["<unk>", "red", "shoe", "</s>"] if end == 3 else ["<unk>", "</s>", *sorted(set("".join(TEXTS)))]
    tokenizer = Tokenizer(models.Unigram([(one, -1.0) for one in vocabulary], 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", end)])
    return tokenizer


def test_texts_get_the_tokens_and_vectors_of_clip(clip: Exported) -> None:
    compare(*clip, open_clip.get_tokenizer(CLIP)(TEXTS))


@pytest.fixture
def repository(hub: dict[str, bytes]) -> dict[str, bytes]:
    """The files of the repository `org/name`, to which tests add: a tokenizer."""
    config = json.dumps({"pad_token": {"content": "</s>"}, "model_max_length": TOKENS}).encode()
    hub |= {"tokenizer.json": make_tokenizer().to_str().encode(), "tokenizer_config.json": config}
    return hub


def test_texts_get_the_tokens_and_vectors_of_siglip(tmp_path: Path, repository: dict[str, bytes]) -> None:
    """Tokens as open_clip makes them: its cleaning, then the tokenizer of the repository."""
    own, clean = Tokenizer.from_str(repository["tokenizer.json"].decode()), get_clean_fn("canonicalize")
    own.enable_truncation(TOKENS)
    own.enable_padding(pad_id=1, pad_token="</s>", length=TOKENS)
    compare(*export_with_weights(SIGLIP, tmp_path), torch.tensor([own.encode(clean(text)).ids for text in TEXTS]))


def save_text_model(path: Path, *, width: int = 4, output: str = "text_embeds", kind: str = "int64") -> Path:
    """Sums of the embeddings of unmasked tokens up to each token, or all of them together as `text_embeds`."""
    tokens, last = f"[n, {TOKENS}]", "ReduceMax <axes = [1], keepdims = 0>"
    shape, last = (f"n, {TOKENS}, ", "Identity") if output == "last_hidden_state" else ("n, ", last)
    text = f"""<ir_version: 8, opset_import: ["": 17]> model ({kind}{tokens} input_ids, {kind}{tokens} attention_mask)
        => (float[{shape}{width}] {output}) <int64[1] axis = {{2}}, int64 along = {{1}}> {{
        all = Gather (table, input_ids)
        floats = Cast <to = 1> (attention_mask)
        column = Unsqueeze (floats, axis)
        rows = Mul (all, column)
        sums = CumSum (rows, along)
        {output} = {last} (sums)
    }}"""
    model, table = onnx.parser.parse_model(text), np.random.default_rng(0).normal(size=(400, width))
    model.graph.initializer.append(numpy_helper.from_array(table.astype(np.float32), "table"))
    onnx.save(model, path)
    return path


def check_sums(out: Path, text_model: Path, pool: Any) -> None:
    ids, mask = TextEncoder.open(out).tokenize("red shoe")
    table = next(numpy_helper.to_array(one) for one in onnx.load(text_model).graph.initializer if one.name == "table")
    expected = pool(np.cumsum(table[ids[0]] * mask[0][:, None], axis=0), ids[0].tolist())
    np.testing.assert_allclose(TextEncoder.open(out).embed("red shoe"), expected / np.linalg.norm(expected), atol=1e-6)


def test_a_repository_of_the_hub_gives_its_text_tower(tmp_path: Path, repository: dict[str, bytes]) -> None:
    repository["onnx/vision_model.onnx"] = make_tower(tmp_path / "vision.onnx").read_bytes()
    repository["onnx/text_model.onnx"] = save_text_model(tmp_path / "text.onnx").read_bytes()
    export(out=tmp_path / "m.onnx", backbone="hf:org/name", crop=SIDE, resize=SIDE, with_text=True, **GIVEN)
    check_sums(tmp_path / "m.onnx", tmp_path / "text.onnx", lambda sums, _: sums.max(axis=0))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    text = {"text_model": save_text_model(tmp_path / "text.onnx"), "tokenizer": tmp_path / "tokenizer.json"}
    return {"backbone": str(make_tower(tmp_path / "vision.onnx")), "crop": SIDE, "resize": SIDE, **GIVEN, **text}


@pytest.mark.parametrize("as_clip", [True, False])
def test_hidden_states_are_pooled_as_clip_or_siglip_do(tmp_path: Path, files: dict[str, Any], as_clip: bool) -> None:
    make_tokenizer(3 if as_clip else 1).save(str(tmp_path / "tokenizer.json"))
    path = save_text_model(tmp_path / "text.onnx", output="last_hidden_state", width=6, kind="int32")
    export(out=tmp_path / "m.onnx", **{**files, "output": "pooler_output"})
    check_sums(tmp_path / "m.onnx", path, lambda sums, ids: sums[ids.index(3) if as_clip else -1])


def test_pairs_that_share_no_space_are_refused(tmp_path: Path, files: dict[str, Any]) -> None:
    wide = save_text_model(tmp_path / "wide.onnx", width=5)
    pooled = save_text_model(tmp_path / "pooled.onnx", output="pooler_output")
    nothing = {"text_model": None, "tokenizer": None, "with_text": True}
    for message, changes in [
        (r"wide\.onnx: text vectors are 5 wide, image embeddings 4: .* does not belong", {"text_model": wide}),
        ("pooler_output lacks the projection of the image model's image_embeds", {"text_model": pooled}),
        ("--text-model: --whiten adds a head", {"whiten": tmp_path}),
        ("--text-model FILE.onnx and --tokenizer tokenizer.json go together", {"tokenizer": None}),
        ("has no text tower that is known; give --text-model", nothing),
    ]:
        with pytest.raises(InputError, match=message):
            export(out=tmp_path / "m.onnx", **{**files, **changes})
    with pytest.raises(InputError, match="--with-text goes with --backbone: a trained run adds a head"):
        export("run", with_text=True)


def test_a_gallery_keeps_the_text_tower(clip: Exported, pictures: Path, tmp_path: Path) -> None:
    gallery, model, (first, second, *_) = tmp_path / "g", clip[0], sorted(pictures.iterdir())
    build_gallery(model_path=model, sources=[first], out=gallery)
    own = Gallery.open(gallery).text_encoder
    assert np.array_equal(own.embed("red shoe"), TextEncoder.open(model).embed("red shoe"))
    assert read_info(gallery)["text"] == {"token_length": 77}
    hit = Gallery.open(gallery).search("red shoe")[0]
    assert (hit.found_by, hit.score) == (
        "looks",
        pytest.approx(own.embed("red shoe") @ Gallery.open(gallery).vector(hit.id), abs=1e-5),
    )
    add_to_gallery(gallery, [second])
    old, new = (gallery / "versions" / name / "model.text.onnx" for name in ("000001", "000002"))
    assert old.samefile(new)
    copy_gallery(gallery, tmp_path / "copy")
    embed_shard(open_shards(model_path=model, sources=[first], out=tmp_path / "sharded"), Shard(1, 1))
    merge_shards(tmp_path / "sharded")
    assert not verify_gallery(tmp_path / "copy").problems + verify_gallery(tmp_path / "sharded").problems
    new.unlink()
    new.write_bytes(old.read_bytes()[:-1] + b"x")
    assert "model.text.onnx" in verify_gallery(gallery).problems[0]
    with pytest.raises(GalleryDamagedError, match=r"model\.text\.onnx: damaged, or of another model"):
        _ = Gallery.open(gallery).text_encoder
    repair_gallery(gallery)
    assert Gallery.open(gallery).text_encoder is not None


def test_files_that_are_missing_or_of_another_model_are_named(
    clip: Exported, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Path(shutil.copy(clip[0], tmp_path / "mine.onnx"))
    with pytest.raises(ModelFileError, match=r"mine\.text\.onnx: missing: mine\.onnx has a text tower"):
        build_gallery(model_path=model, sources=[pictures], out=tmp_path / "g")
    assert not (tmp_path / "g").exists()
    for end in (".text.onnx", ".tokenizer.json"):
        shutil.copy(clip[0].with_suffix(end), model.with_suffix(end))
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "tokenizers", None)
        with pytest.raises(MissingDependencyError, match=r"\[text\]"):
            TextEncoder.open(model)
    model.with_suffix(".tokenizer.json").write_text("{}")
    with pytest.raises(ModelFileError, match=r"mine\.tokenizer\.json: damaged, or of another model than mine\.onnx"):
        TextEncoder.open(model)
