"""Models of open_clip small enough for tests, by its own way to add some."""

import json
from pathlib import Path

VIT, RESNET, TIMM = "small-ViT", "small-RN", "small-timm"
CLIP, SIGLIP = "small-CLIP", "small-SigLIP"  # with a whole vocabulary, and with a tokenizer of the Hub
WIDTH = 24  # of the space that images and texts share
SIDE = 32
_TEXT = {"context_length": 8, "vocab_size": 50, "width": 16, "heads": 2, "layers": 1}
_VISION = {
    VIT: {"image_size": SIDE, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    RESNET: {"image_size": SIDE, "layers": [1, 1, 1, 1], "width": 8, "head_width": 32, "patch_size": None},
    TIMM: {"image_size": 160, "timm_model_name": "test_vit", "timm_pool": "avg", "timm_proj": "linear"},
}
_VISION |= dict.fromkeys((CLIP, SIGLIP), _VISION[VIT])
_WITH_TOKENIZER = {
    CLIP: {"context_length": 77, "vocab_size": 49408},
    SIGLIP: {
        "context_length": 16,
        "vocab_size": 400,
        "no_causal_mask": True,
        "pool_type": "last",
        "proj_bias": True,
        "hf_tokenizer_name": "org/name",
        "tokenizer_kwargs": {"clean": "canonicalize"},
    },
}


def add_small_towers(folder: Path) -> None:
    """Make the models known to open_clip in this process; their files stay in the folder."""
    import open_clip

    for name, vision in _VISION.items():
        config = {"embed_dim": WIDTH, "vision_cfg": vision, "text_cfg": _TEXT | _WITH_TOKENIZER.get(name, {})}
        (folder / f"{name}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)
