"""The network stage within a time: speeds are measured once, the plan is told, and kept for a resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from training.backbone.extract import Extractor
from training.losses.guidance import Guidance
from training.network.blocks import find_blocks
from training.network.decoded_images import DecodingPlan
from training.network.precision import PRECISIONS
from training.options.config import TrainConfig
from training.options.machine import Machine
from training.run.network.choice import MOST_JUDGED
from training.run.network.data import NetworkData
from training.run.network.plan import (
    Costs,
    NetworkPlan,
    choose_plan,
    describe_plan,
    list_depths,
)
from training.run.network.speed import SpeedTrial, decode_sample
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
        InputError: not even one epoch fits.
    """
    if config.network.budget_s is None:
        return config, None
    notes = read_notes(run)
    if "plan" not in notes:
        sample = decode_sample(paths, extractor.preprocess, workers=machine.workers)
        trial = SpeedTrial(
            extractor, sample.pixels, class_count=data.class_count, config=config, guidance=guidance,
            precision=None if machine.precision == "auto" else PRECISIONS[machine.precision],
        )  # fmt: skip
        blocks = find_blocks(extractor.backbone, side=extractor.preprocess.crop)
        speeds = {depth: trial.time_step(depth) for depth in list_depths(config.network, blocks=len(blocks))}
        costs = _count(speeds, trial.time_features(), data, seconds, config=config)
        decoded = 0.0 if decoding.file.exists() else len(paths) * sample.seconds
        costs = replace(costs, once=costs.once + decoded + time.perf_counter() - begun)
        plan = choose_plan(costs, budget_s=config.network.budget_s, epochs=config.network.network_epochs)
        notes = {"precision": str(trial.precision).removeprefix("torch."), "plan": asdict(plan)}
        run.write_json(NOTES, notes)
    plan = NetworkPlan(**notes["plan"])
    on_note(describe_plan(plan, side=config.network.network_crop or extractor.preprocess.crop))
    return replace(config, network=plan.settle(config.network)), plan


def read_notes(run: RunFolder) -> dict[str, Any]:
    """What the stage has measured and chosen so far."""
    return run.read_json(NOTES) if (run.path / NOTES).exists() else {}


def _count(
    speeds: dict[int | None, float], a_pass: float, data: NetworkData, seconds: ClosedForms, *, config: TrainConfig
) -> Costs:
    """Seconds of what the stage does with decoded images, by how often; `a_pass` is of one image without training."""
    trained, searched = len(data.split.train), len(data.searched_rows())
    return Costs(
        once=((1 + MOST_JUDGED) * searched + len(data.labels)) * a_pass + 2 * seconds.head,
        judging=searched * a_pass,
        believing=trained * a_pass + seconds.beliefs,
        believe_every=config.network.network_judge_every if config.judges_again else 0,
        training={depth: trained * an_image for depth, an_image in speeds.items()},
    )
