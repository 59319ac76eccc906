"""Text towers to export: of open_clip, of a repository of the Hub, or of an ONNX file with its tokenizer."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from tokenizers import Tokenizer

from export.public import ExportConfig
from export.text_tokenizers import make_tokenizer, read_tokenizer
from export.to_onnx import MIN_COSINE, ExportedModel
from index.durable import write_durably
from index.errors import InputError, ModelFileError, ParityError
from index.model.contract import TextTower
from index.model.text_encoder import MASK, TOKEN_TYPES, TextEncoder
from index.text import printable_path
from training.backbone.graphs import TEXT_OUTPUT, write_text_graph
from training.backbone.onnx_form import start_session
from training.backbone.onnx_models import TOKENIZER, TOKENIZER_CONFIG, find_file, read_graph
from training.options.backbone_libraries import HUB, LIBRARIES, find_library, is_onnx_file

_HUB_FILES = ("text_model.onnx",)
_KNOWN_OUTPUTS = (TEXT_OUTPUT, "pooler_output", "sentence_embedding", "text_features", "embeddings")
_TEXTS = ("red shoe", "a photo of a cat", "two people on a bicycle in 1950")


@dataclass(frozen=True, slots=True)
class ExportedText:
    """Text model and tokenizer to write beside a model file, and the contract's part on them."""

    tower: TextTower
    model: bytes
    tokenizer: bytes

    def write(self, report: ExportedModel) -> ExportedModel:
        """Write both files beside an exported model; its report, which names the text model."""
        paths = list(self.tower.files(Path(report.model)))
        for path, content in zip(paths, (self.model, self.tokenizer), strict=True):
            try:
                write_durably(path, content)
            except OSError as error:
                raise InputError(f"cannot be written: {error}", at=path) from error
        return replace(report, text_model=str(paths[0]))


def make_text_tower(config: ExportConfig, *, width: int) -> ExportedText:
    """The text tower of an untrained backbone, checked on a few texts.

    Args:
        width: D of the image embeddings, which the text vectors must have.
    """
    backbone = str(config.backbone)
    if config.text_model is not None and config.tokenizer is not None:
        return _take_onnx(config.text_model, config.tokenizer, config, width=width)
    if backbone.startswith(HUB):
        model = find_file(backbone, _HUB_FILES, beside=(TOKENIZER, TOKENIZER_CONFIG), lacks="ONNX text model")
        places = (model.with_name(TOKENIZER), model.parent.with_name(TOKENIZER))
        return _take_onnx(model, next((place for place in places if place.is_file()), places[0]), config, width=width)
    if is_onnx_file(backbone) or find_library(backbone)[0] is not LIBRARIES["open_clip"]:
        raise InputError(
            f"--with-text: --backbone {backbone} has no text tower that is known; give --text-model FILE.onnx with "
            "--tokenizer tokenizer.json, or take an open_clip:NAME/TAG or hf:ORG/NAME of images and text"
        )
    return _convert_open_clip(find_library(backbone)[1], config.weights or "pretrained", width=width)


def _convert_open_clip(name: str, weights: str, *, width: int) -> ExportedText:
    """Text tower of open_clip, whose graph agrees with torch."""
    from training.backbone.open_clip_models import build_text_tower  # which ONNX files do without

    network, config = build_text_tower(name, weights)
    tokenizer = make_tokenizer(config)
    length = len(tokenizer.encode("").ids)
    model = write_text_graph(network.float(), token_length=length, name=name)
    made, encoder = _join(model, tokenizer, width=width, output=TEXT_OUTPUT, shown=f"open_clip:{name}")
    tokens = torch.from_numpy(np.concatenate([encoder.tokenize(text)[0] for text in _TEXTS]))
    with torch.inference_mode():
        expected = torch.nn.functional.normalize(network(tokens)).double().numpy()
    cosine = float((np.stack([encoder.embed(text) for text in _TEXTS]) * expected).sum(axis=1).min())
    if not cosine >= MIN_COSINE:
        raise ParityError(path=f"the text tower of {name}", min_cosine=cosine, required=MIN_COSINE)
    return made


def _take_onnx(path: Path, tokenizer_path: Path, config: ExportConfig, *, width: int) -> ExportedText:
    """Text tower of an ONNX file, as it is, with its weights inside."""
    shown = printable_path(path)
    model = read_graph(path).SerializeToString()
    session = start_session(model, shown=shown)
    tokens = [value.shape for value in session.get_inputs() if value.name not in (MASK, TOKEN_TYPES)]
    lengths = [shape[1] for shape in tokens if len(shape) == 2 and isinstance(shape[1], int)]
    tokenizer = read_tokenizer(tokenizer_path, token_length=lengths[0] if lengths else None)
    ranks = {value.name: len(value.shape) for value in session.get_outputs() if "float" in value.type}
    output = _choose_output(ranks, shown)
    if output != TEXT_OUTPUT and config.output in (None, "image_embeds") and _projects_images(str(config.backbone)):
        raise InputError(
            f"{shown}: its output {output} lacks the projection of the image model's image_embeds, so that texts and "
            f"images would not share a space; export the text model with its {TEXT_OUTPUT}"
        )
    pooling = "none"
    if ranks[output] == 3:
        ids = tokenizer.encode(_TEXTS[0]).ids
        pooling = "end-of-text" if max(ids) == tokenizer.get_vocab_size() - 1 else "last"  # as CLIP, or SigLIP
    return _join(model, tokenizer, width=width, output=output, pooling=pooling, shown=shown)[0]


def _choose_output(ranks: Mapping[str, int], shown: str) -> str:
    """The pooled output of a usual name, else the only one, else the tokens to be pooled."""
    known = [name for name in _KNOWN_OUTPUTS if ranks.get(name) == 2]
    pooled = [name for name, rank in ranks.items() if rank == 2]
    tokens = [name for name, rank in ranks.items() if rank == 3]
    found = known[:1] or (pooled if len(pooled) == 1 else []) or (tokens if not pooled and len(tokens) == 1 else [])
    if not found:
        told = ", ".join(f"{name} of {rank} dimensions" for name, rank in ranks.items()) or "none"
        raise InputError(f"its outputs are {told}; expected {TEXT_OUTPUT} (N, D), or tokens (N, T, D)", at=shown)
    return found[0]


def _projects_images(backbone: str) -> bool:
    """Whether an ONNX backbone gives the projected embeddings of CLIP."""
    if not is_onnx_file(backbone):
        return False
    graph = onnx.load(find_file(backbone), load_external_data=False).graph
    return any(value.name == "image_embeds" for value in graph.output)


def _join(
    model: bytes, tokenizer: Tokenizer, *, width: int, shown: object, **graph: Any
) -> tuple[ExportedText, TextEncoder]:
    """Text model and tokenizer with their checksums, opened and compared with the width of image embeddings."""
    text = tokenizer.to_str().encode()
    own, other = (hashlib.sha256(content).hexdigest() for content in (model, text))
    tower = TextTower(own, other, width=width, token_length=len(tokenizer.encode("").ids), **graph)
    try:
        encoder = TextEncoder(tower, model, text, shown=shown)
        found = encoder.run(_TEXTS[0])
        if found.shape[1:] != (width,):
            raise InputError(
                f"text vectors are {' x '.join(map(str, found.shape[1:]))} wide, image embeddings {width}: this text "
                "model does not belong to the image model",
                at=shown,
            )
        vectors = [encoder.embed(one) for one in _TEXTS]
    except ModelFileError as error:
        raise InputError(str(error)) from error
    if np.ptp(vectors, axis=0).max() <= 1e-6:
        problem = "all texts get the same vector: the tokenizer does not belong to the text model"
        raise InputError(problem, at=shown)
    return ExportedText(tower, model, text), encoder
