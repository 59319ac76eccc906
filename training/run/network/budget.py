"""The network stage within a time: speeds are measured once, the plan is told, and kept for a resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from training.backbone.extract import Extractor
from training.losses.guidance import Guidance
from training.network.blocks import find_blocks
from training.network.decoded_images import DecodingPlan
from training.network.precision import PRECISIONS
from training.options.config import TrainConfig
from training.options.machine import Machine
from training.run.network.blocks import view_side
from training.run.network.choice import MOST_JUDGED
from training.run.network.data import NetworkData
from training.run.network.plan import (
    Costs,
    DepthCosts,
    NetworkPlan,
    choose_plan,
    describe_plan,
    list_depths,
)
from training.run.network.speed import Speed, SpeedTrial, decode_sample
from training.run.run_folder import RunFolder

NOTES = "network.json"


@dataclass(frozen=True, slots=True)
class ClosedForms:
    """Seconds that one head in closed form took, and one judgement of all labels."""

    head: float
    beliefs: float


def settle_network(
    run: RunFolder,
    data: NetworkData,
    *,
    paths: Sequence[Path],
    decoding: DecodingPlan,
    extractor: Extractor,
    config: TrainConfig,
    machine: Machine,
    guidance: Guidance | None,
    seconds: ClosedForms,
    begun: float,
    on_note: Callable[[str], None],
) -> tuple[TrainConfig, NetworkPlan | None]:
    """The options with what --time-budget leaves to a plan, and that plan; as they are without a budget.

    Args:
        data: its pixels are not read.
        paths: of all images.
        begun: when the stage did, by `time.perf_counter`.
        on_note: told the plan.

    Raises:
        NoTimeError: not even one epoch fits.
    """
    if config.network.budget_s is None:
        return config, None
    notes = read_notes(run)
    if "plan" not in notes:
        sample = decode_sample(paths, extractor.preprocess, workers=machine.workers)
        trial = SpeedTrial(
            extractor, sample.pixels, share=len(data.split.train) / len(paths), class_count=data.class_count,
            config=config, guidance=guidance,
            precision=None if machine.precision == "auto" else PRECISIONS[machine.precision],
            threads=machine.drawing_threads,
        )  # fmt: skip
        decoded = 0.0 if decoding.file.exists() else len(paths) * sample.seconds
        costs = _measure(
            trial, data, seconds, config=config,
            once=lambda: 2 * seconds.head + decoded + time.perf_counter() - begun,
            blocks=len(find_blocks(extractor.backbone, side=extractor.preprocess.crop)),
        )  # fmt: skip
        plan = choose_plan(costs, budget_s=config.network.budget_s, epochs=config.network.network_epochs)
        notes = {"precision": str(trial.precision).removeprefix("torch."), "plan": asdict(plan)}
        run.write_json(NOTES, notes)
    plan = NetworkPlan(**notes["plan"])
    on_note(describe_plan(plan, side=view_side(config)))
    return replace(config, network=plan.settle(config.network)), plan


def read_notes(run: RunFolder) -> dict[str, Any]:
    """What the stage has measured and chosen so far."""
    return run.read_json(NOTES) if (run.path / NOTES).exists() else {}


def _measure(
    trial: SpeedTrial, data: NetworkData, seconds: ClosedForms, *, config: TrainConfig, once: Callable[[], float],
    blocks: int,
) -> Costs:  # fmt: skip
    """From the shallowest depth on, until one has no time for its epochs: a deeper one would have less."""
    options, found = config.network, dict[int | None, DepthCosts]()
    assert options.budget_s is not None
    depths = list_depths(options, blocks=blocks)
    trial.settle_precision(depths[len(depths) // 2])
    for depth in reversed(depths):
        found = {depth: _count(trial.time_depth(depth), data, seconds, views=options.network_views), **found}
        costs = Costs(once(), options.network_judge_every, config.judges_again, options.network_views, found)
        if not costs.has_time(depth, budget_s=options.budget_s, epochs=options.network_epochs):
            break
    return costs


def _count(speed: Speed, data: NetworkData, seconds: ClosedForms, *, views: int) -> DepthCosts:
    """Seconds of what the stage does with images, from those an image."""
    searched, train = data.searched_rows(), data.split.train
    trained, images = len(train), len(data.labels)
    judging = len(searched) * speed.a_pass
    return DepthCosts(
        epoch=trained * (speed.step + (speed.front or 0.0)),
        kept_epoch=None if speed.front is None else trained * speed.step,
        keeping=views * trained * (speed.front or 0.0),
        once=images * (speed.centre + speed.a_pass) + (1 + MOST_JUDGED) * judging,
        judging=judging,
        believing=len(np.setdiff1d(train, searched)) * speed.a_pass + seconds.beliefs,
    )
