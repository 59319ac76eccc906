"""From images without labels to a small network of two outputs, by a teacher that looks at each once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from index.errors import InputError, RunError
from index.images.preprocess import PreprocessConfig
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor, extract_features, open_store
from training.distill.blocks import require_one_shape
from training.distill.fit import Distillation, DistillConfig, DistillEpoch, Teacher
from training.distill.network import TwoOutputs
from training.distill.threshold import measure_threshold
from training.head.embedding_heads import AffineHead
from training.head.untrained import fit_untrained
from training.network.decoded_images import DecodingPlan, decode_images
from training.run.checkpoint import load_checkpoint, save_checkpoint
from training.run.validate import embed_features

TEACHES_BY = "pca-half-whitened"  # of what needs no labels, the best of most tables in docs/results
STUDENT, CHECKPOINT, CHECKED = "student.safetensors", "distill.safetensors", "check"
_HELD_OUT, _MOST_HELD = (
    20,
    1000,
)  # every 20th image, or at most so many, does not teach: by them the threshold is found
_CHECKS = 8  # images that an export is checked on
_ROOM = 1.125  # of the images' side to the student's: what copies are cut from

Tell = Callable[[str, int, int], None]


def distill(
    paths: Sequence[Path], out: Path, *, teacher: Extractor, config: DistillConfig, cache: Path, workers: int,
    on_images: Tell = lambda *_: None, on_epoch: Callable[[DistillEpoch], None] = lambda _: None,
) -> TwoOutputs:  # fmt: skip
    """Train on the teacher's device, or go on with what `out` has: it gets the student's weights, and a line an epoch.

    Args:
        paths: images; those that cannot be read are left out.
        teacher: a frozen backbone, as it is to see whole images.
        on_images: called with (what is done, images done, images).

    Raises:
        InputError: no readable image, or fewer than the student's width.
        RunError: training diverged.
    """
    if config.block_epochs:
        require_one_shape(teacher.backbone.network, load_backbone(config.backbone, "none").network)
    store = open_store(cache, teacher, views=1)
    extracted = extract_features(
        paths, store=store, extractor=teacher, views=1, workers=workers,
        progress=lambda done, total: on_images("teacher", done, total),
    )  # fmt: skip
    if not extracted.hashes:
        raise InputError(f"none of the {len(paths)} files is a readable image")
    hashes, rows = np.unique(extracted.hashes, return_index=True)  # a file twice would be its own stranger
    features = store.load(hashes.tolist())[:, 0]
    head = fit_untrained(TEACHES_BY, features, embedding_dim=config.kind_dim)
    assert isinstance(head, AffineHead)
    taught = Teacher(
        np.ascontiguousarray(embed_features(head, features)), teacher.backbone.network, head.weight, head.bias
    )
    larger = PreprocessConfig(*(round(_ROOM * config.preprocess.crop),) * 2)
    plan = DecodingPlan.of(hashes.tolist(), larger, cache=cache)
    used = [paths[row] for row in extracted.rows[rows]]
    pixels = decode_images(
        used, plan, larger, workers=workers, progress=lambda done, total: on_images("decode", done, total)
    )
    out.mkdir(parents=True, exist_ok=True)

    def note(epoch: DistillEpoch) -> None:
        with (out / "epochs.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(epoch)) + "\n")
        on_epoch(epoch)

    held = np.arange(0, len(pixels), max(_HELD_OUT, len(pixels) // _MOST_HELD))  # hashes have no order
    teach = np.setdiff1d(np.arange(len(pixels)), held)
    student = Distillation(
        pixels, taught, teach, config=config, device=teacher.device, checkpoint=out / CHECKPOINT, workers=workers,
        on_epoch=note,
        on_images=lambda done, total: on_images("batches", done, total),
    ).run()  # fmt: skip
    threshold = measure_threshold(student, pixels, held.tolist(), sizes=config.preprocess, seed=config.seed)
    made = {"backbone": config.backbone, "side": config.preprocess.crop, "kind_dim": config.kind_dim,
            "picture_dim": config.picture_dim, "picture_threshold": threshold, "pictures": len(teach)}  # fmt: skip
    save_checkpoint(out / STUDENT, student.state_dict(), state=made)
    (out / CHECKED).mkdir(exist_ok=True)
    side = (config.preprocess.crop,) * 2
    for row in held[:_CHECKS].tolist():
        Image.fromarray(np.asarray(pixels[row])).resize(side).save(out / CHECKED / f"{row}.png")
    return student


def load_student(out: Path) -> tuple[TwoOutputs, dict[str, Any]]:
    """The finished student of a folder, in eval mode, and what is known of it: widths, size, threshold.

    Raises:
        RunError: there is none, or it is damaged.
    """
    if not (out / STUDENT).exists():
        raise RunError(f"{out / STUDENT}: there is none; the student is not finished: run the same command again")
    tensors, made = load_checkpoint(out / STUDENT)
    trunk = load_backbone(made["backbone"], "none", seed=0)
    student = TwoOutputs(trunk, kind_dim=made["kind_dim"], picture_dim=made["picture_dim"], seed=0)
    student.load_state_dict(tensors)
    return student.eval().requires_grad_(False), made
