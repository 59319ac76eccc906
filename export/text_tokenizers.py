"""Tokenizers of text towers, each one `tokenizer.json` that cleans, pads and truncates by itself.

open_clip cleans texts in Python before its tokenizers; here the same steps are the normalizer's. Of ftfy's repairs it
has characters, not texts that were decoded wrongly or hold HTML entities.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from index.errors import InputError
from training.backbone.onnx_models import TOKENIZER, TOKENIZER_CONFIG, find_file
from training.options.backbone_libraries import HUB

_CLIP_TOKENS = 77
_MOST_TOKENS = 4096  # transformers writes 10^30 for models without a limit
_CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_PUNCTUATION = r"[!-/:-@\[-`{-~]"
_CONTROLS = r"[\x00-\x08\x0B\x0E-\x1F\x7F\x{206A}-\x{206F}\x{FEFF}\x{FFF9}-\x{FFFC}]"


def read_tokenizer(path: Path, *, token_length: int | None = None) -> Tokenizer:
    """Tokenizer of a `tokenizer.json`, with the length and the padding of the `tokenizer_config.json` beside it.

    `token_length` is that of the model, if it is known.
    """
    beside = path.with_name(TOKENIZER_CONFIG)
    try:
        tokenizer = Tokenizer.from_file(str(path))
        config = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
        padding, truncation = tokenizer.padding or {}, tokenizer.truncation or {}
        lengths = (token_length, config.get("model_max_length"), truncation.get("max_length"))
        length = next((int(one) for one in lengths if one and one <= _MOST_TOKENS), None)
        pad = config.get("pad_token") or padding.get("pad_token")
        pad = pad["content"] if isinstance(pad, dict) else pad
        side = config.get("padding_side", padding.get("direction", "right"))
    except Exception as error:  # the package raises no class of its own
        raise InputError(f"not a {TOKENIZER}, or a damaged one: {error}", at=path) from error
    if length is None:
        raise InputError(f"nothing says how many tokens its model takes: put its {TOKENIZER_CONFIG} beside it", at=path)
    pad_id = 0 if pad is None else tokenizer.token_to_id(pad)
    if pad_id is None:
        raise InputError(f"its padding {pad!r} is not in its vocabulary", at=path)
    return _with_length(tokenizer, length, pad_id=pad_id, side=side)


def make_tokenizer(text: Mapping[str, Any]) -> Tokenizer:
    """Tokenizer of an open_clip text tower, by its config: CLIP's own, or that of a repository of the Hub."""
    length, options = int(text.get("context_length", _CLIP_TOKENS)), text.get("tokenizer_kwargs", {})
    if repository := text.get("hf_tokenizer_name"):
        name = f"{HUB}{repository}"
        path = find_file(name, (TOKENIZER,), beside=(TOKENIZER_CONFIG,), lacks="tokenizer")
        tokenizer = read_tokenizer(path, token_length=length)
        own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([*_clean(options.get("clean", "whitespace")), *own])
        return tokenizer
    from open_clip.tokenizer import SimpleTokenizer  # which ONNX files do without

    clip = SimpleTokenizer()
    tokenizer = Tokenizer(models.BPE(clip.encoder, list(clip.bpe_ranks), end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence(_clean(options.get("clean", "lower")))
    words = pre_tokenizers.Split(Regex(_CLIP_WORDS), behavior="removed", invert=True)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, to_bytes])
    start, end = (clip.decoder[number] for number in (clip.sot_token_id, clip.eot_token_id))
    tokenizer.add_special_tokens([start, end])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}", special_tokens=[(start, clip.sot_token_id), (end, clip.eot_token_id)]
    )
    return _with_length(tokenizer, length, pad_id=0)


def _with_length(tokenizer: Tokenizer, length: int, *, pad_id: int, side: str = "right") -> Tokenizer:
    """The tokenizer, changed to give this number of tokens for any text."""
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(direction=side, pad_id=pad_id, pad_token=tokenizer.id_to_token(pad_id), length=length)
    return tokenizer


def _clean(kind: str) -> list[Any]:
    """Steps of open_clip's cleaning: `whitespace`, `lower`, or `canonicalize`, which drops punctuation."""
    from ftfy import chardata  # as open_clip does

    replaced = {**chardata.LIGATURES, **chardata.WIDTH_MAP}
    steps: list[Any] = [normalizers.Replace(chr(code), text) for code, text in replaced.items()]
    steps += [
        normalizers.Replace(Regex("[\u02bc\u2018-\u201b]"), "'"),
        normalizers.Replace(Regex("[\u201c-\u201f]"), '"'),
        normalizers.Replace(Regex(_CONTROLS), ""),
        normalizers.NFC(),
    ]
    if kind == "canonicalize":
        steps += [normalizers.Replace("_", " "), normalizers.Replace(Regex(_PUNCTUATION), "")]
    if kind != "whitespace":  # the package lowers letter by letter, Python the last sigma of a word in its own way
        steps += [normalizers.Replace(Regex(r"(?<=\p{L})Σ(?!\p{L})"), "ς"), normalizers.Lowercase()]
    return [*steps, normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
