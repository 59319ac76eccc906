"""Make a small network of two outputs from folders of images, by a teacher's weights; the same command goes on.

python -m training.distill photos more-photos --weights mobilenet_v2.safetensors --out box
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import fields
from pathlib import Path

from index.errors import RetrievalError
from index.images.preprocess import PreprocessConfig
from index.sources.folder_walk import walk_folder
from index.threads import usable_cores
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor
from training.distill.fit import DistillConfig
from training.distill.run import distill
from training.options.machine import resolve_device

logger = logging.getLogger(__name__)
TEACHER_SIDE = 224


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("folders", type=Path, nargs="+", help="of images; all below them teach")
    add("--out", type=Path, required=True, help="folder of the weights, the checkpoint and the log")
    add(
        "--teacher",
        default="mobilenet_v2",
        help="a backbone by name, as of retrieval train (default: mobilenet_v2)",
    )
    add("--weights", required=True, help="of the teacher: a file, or pretrained")
    add("--cache", type=Path, help="of features and decoded images (default: OUT/cache)")
    add("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    add("--side", type=int, default=128, help="pixels a side of what the student sees (default: 128)")
    numbers = [field for field in fields(DistillConfig) if isinstance(field.default, int | float | str)]
    for field in numbers:
        add(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default,
            help=f"default: {field.default}")  # fmt: skip
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sizes = PreprocessConfig(resize=options.side, crop=options.side)
    config = DistillConfig(preprocess=sizes, **{field.name: getattr(options, field.name) for field in numbers})
    whole = PreprocessConfig(resize=TEACHER_SIDE, crop=TEACHER_SIDE)
    try:
        device = resolve_device(options.device)
        teacher = Extractor(load_backbone(options.teacher, options.weights), whole, device=device)
        paths = [
            folder / found.path for folder in options.folders for found in walk_folder(folder) if not found.problem
        ]
        distill(
            paths, options.out, teacher=teacher, config=config, cache=options.cache or options.out / "cache",
            workers=usable_cores(), on_images=_tell, on_epoch=lambda epoch: logger.info("%s", epoch),
        )  # fmt: skip
    except RetrievalError as error:
        raise SystemExit(f"error: {error}") from error


def _tell(what: str, done: int, total: int) -> None:
    if done == total or done % max(1, total // 10) == 0:
        logger.info("%s: %s of %s", what, f"{done:,}", f"{total:,}")


if __name__ == "__main__":
    main()
