"""Forward and backward of a network in training, and features, on a CPU: ours beside torchvision's network in torch.

    python -m benchmarks.training.steps --out bench/steps

`last-13` and `all` are forward and backward of MobileNetV2 with a head on views of 160 pixels, of which the last blocks
or all learn, without loss and optimiser; `features` is a forward pass on 224 pixels. The weights are random. Every
contestant runs in a process of its own, and they take turns; the table has medians, and the least and the most. Torch's
has batch norm as in evaluation, channels last and autocast; `tuned` also keeps freed memory, as ours does, and applies
no activation in place. A command that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common.parts import Part, make_parser, measure_in_turns, parse_counts, print_parts
from benchmarks.common.record import digest, hash_code
from benchmarks.common.tables import format_spread, format_table, spread
from index.images.preprocess import PreprocessConfig
from training.backbone.backbones import Backbone, arrange_images, load_backbone
from training.backbone.extract import Extractor, keep_freed_memory
from training.head.embedding_heads import ProjectionHead
from training.network.model import NetworkModel, choose_blocks, find_blocks

MODULE = "benchmarks.training.steps"
BACKBONE, WIDTH = "mobilenet_v2", 512
SIDES = {"last-13": 160, "all": 160, "features": 224}
OURS = "ours"
CONTESTANTS = {f"{OURS}, bfloat16": "bfloat16", f"{OURS}, float32": "float32"}
CONTESTANTS |= {"torch, bfloat16": "bfloat16", "torch, bfloat16, tuned": "bfloat16", "torch, float32": "float32"}


def make_step(part: str, contestant: str, images: Tensor) -> Callable[[], object]:
    """What is timed, on (B, side, side, 3) uint8 images."""
    backbone, precision = load_backbone(BACKBONE, "none", seed=1), CONTESTANTS[contestant]
    sizes = PreprocessConfig(resize=256, crop=224)
    extractor = Extractor(backbone, sizes, device=torch.device("cpu"), precision=precision)
    head = ProjectionHead(torch.randn(WIDTH, backbone.feature_dim) / WIDTH, torch.zeros(WIDTH))
    if not contestant.startswith(OURS):
        for module in backbone.module.modules():
            if isinstance(module, nn.ReLU6):
                module.inplace = "tuned" not in contestant
        return _torch_step(part, backbone, extractor, head, images)
    extractor.extract(images.numpy())  # as a run does first
    if part == "features":
        return lambda: extractor.extract(images.numpy())
    model = NetworkModel(
        backbone,
        head,
        _choose(part, backbone),
        whole=part == "all",
        mean=extractor.mean,
        std=extractor.std,
        precision=extractor.dtype,
        convolutions=extractor.convolutions,
    )
    weights = torch.randn(len(images), WIDTH)
    return lambda: (model(images) * weights).sum().backward()


def _choose(part: str, backbone: Backbone) -> Any:
    last = None if part == "all" else int(part.removeprefix("last-"))
    return choose_blocks(find_blocks(backbone, side=SIDES[part]), last=last, name=backbone.name)


def _torch_step(
    part: str, backbone: Backbone, extractor: Extractor, head: ProjectionHead, images: Tensor
) -> Callable[[], object]:
    """By the same modules as torchvision has them."""
    head = ProjectionHead(head.weight, head.bias, trains=True)
    for block in [] if part == "features" else _choose(part, backbone):
        for parameter in block.parameters(backbone.network):
            parameter.requires_grad_(True)

    def forward() -> Tensor:
        with torch.autocast("cpu", dtype=extractor.dtype, enabled=extractor.dtype != torch.float32):
            features: Tensor = backbone.module(arrange_images(images, extractor.mean, extractor.std))
        return features.flatten(1).float()

    if part == "features":
        return torch.inference_mode()(forward)
    weights = torch.randn(len(images), WIDTH)
    return lambda: (head(forward()) * weights).sum().backward()


def time_steps(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Images a second in each repeat, after one that does not count."""
    generator = torch.Generator().manual_seed(settings["seed"])
    side, batch = SIDES[settings["part"]], settings["batch"]
    images = torch.randint(256, (batch, side, side, 3), dtype=torch.uint8, generator=generator)
    step = make_step(settings["part"], settings["contestant"], images)
    seconds = []
    for _ in range(settings["repeats"] + 1):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return {"images_per_second": [batch / one for one in seconds[1:]]}


def measure(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """Every contestant in every round, by name; what was measured is kept."""
    sizes = {name: getattr(options, name) for name in ("batch", "seed", "repeats")}
    code = hash_code("training", "benchmarks/training")
    folder = options.out / f"kept-{digest([sizes, code, torch.__version__])}"
    settings = dict.fromkeys(CONTESTANTS, sizes)
    found = measure_in_turns(MODULE, part, settings, folder=folder, rounds=options.rounds)
    rows = {name: spread([statistics.median(run["images_per_second"]) for run in runs]) for name, runs in found.items()}
    return {"part": part, **sizes, "rows": rows}


def tabulate(results: Mapping[str, Any]) -> str:
    """A row for each contestant, with what the first does in its time."""
    rows, first = [], next(iter(results["rows"].values()))
    for name, row in results["rows"].items():
        rows.append([name, format_spread(row, digits=0), f"{first['median'] / row['median']:.2f}"])
    title = f"{results['part']}: batches of {results['batch']}, {SIDES[results['part']]} pixels"
    return f"{title}\n\n{format_table(['', 'images/s', 'the first / it'], rows)}"


PARTS = {part: Part(lambda options, part=part: measure(part, options), tabulate) for part in SIDES}


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, PARTS, default=list(PARTS))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5, help="in each process, after one that does not count")
    return parse_counts(parser, arguments, "batch", "repeats")


def run_contestant() -> None:
    """One contestant: settings on stdin, figures on stdout, as JSON."""
    settings = json.load(sys.stdin)
    is_plain = settings["contestant"] in ("torch, bfloat16", "torch, float32")
    json.dump((time_steps if is_plain else keep_freed_memory()(time_steps))(settings), sys.stdout)


def main(arguments: Sequence[str] | None = None) -> None:
    print_parts(PARTS, parse_options(arguments))


if __name__ == "__main__":
    run_contestant() if sys.argv[1:] == ["alone"] else main()
