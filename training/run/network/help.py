"""The network stage in the processes beside rank 0: the same steps, on their part of every batch."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from index.images.preprocess import PreprocessConfig
from training.backbone.extract import Extractor
from training.backbone.freed_memory import keep_freed_memory
from training.head.embedding_heads import ProjectionHead
from training.losses.guidance import Guidance
from training.losses.interface import MetricLoss
from training.losses.make_loss import build_loss
from training.network.decoded_images import DecodingPlan, decode_images
from training.options.config import TrainConfig
from training.run.checkpoint import pack_modules, unpack_module
from training.run.distributed import current_team
from training.run.extraction import SentExtractor
from training.run.network.beliefs import NetworkBeliefs
from training.run.network.blocks import build_model, plan_blocks
from training.run.network.choice import choose_weights
from training.run.network.data import NO_PIXELS, NetworkData
from training.run.network.fit import NetworkFit
from training.run.network.inputs import keep_inputs, plan_inputs
from training.run.phases import NETWORK, PhaseContext, phase_generator
from training.run.run_folder import LabelledImage


@dataclass(frozen=True, slots=True)
class NetworkWork:
    """What a process has to know to take steps with rank 0.

    Attributes:
        data: its pixels are left to every machine's cache.
        loss: the parameters of the loss, as they begin.
    """

    data: NetworkData
    hashes: list[str]
    decoding: DecodingPlan
    extractor: SentExtractor
    start: ProjectionHead
    loss: dict[str, Tensor]
    beliefs: NetworkBeliefs
    guidance: Guidance | None
    config: TrainConfig
    precision: torch.dtype

    @classmethod
    def of(
        cls, loss: MetricLoss, data: NetworkData, *, images: Sequence[LabelledImage], decoding: DecodingPlan,
        extractor: Extractor, start: ProjectionHead, beliefs: NetworkBeliefs, guidance: Guidance | None,
        config: TrainConfig, precision: torch.dtype,
    ) -> NetworkWork:  # fmt: skip
        """Of what rank 0 begins with, on the CPU."""
        begun = {name: tensor.detach().cpu() for name, tensor in pack_modules(loss=loss).items()}
        return cls(
            replace(data, pixels=NO_PIXELS), [image.sha256 for image in images], decoding,
            SentExtractor.of(extractor), start.cpu(), begun,
            beliefs, None if guidance is None else deepcopy(guidance).cpu(), config, precision,
        )  # fmt: skip


def help_decoding(paths: Sequence[Path], plan: DecodingPlan, preprocess: PreprocessConfig) -> None:
    """Have the decoded images in this machine's cache; of its processes the first decodes, and the others wait."""
    decode_images(paths, _on_this_machine(plan), preprocess, workers=current_team().machine.workers)


def _on_this_machine(plan: DecodingPlan) -> DecodingPlan:
    return replace(plan, file=current_team().machine.cache / plan.file.relative_to(plan.file.parents[1]))


@keep_freed_memory()
def help_training(work: NetworkWork) -> None:
    """Train and read features with rank 0, step by step, and forget all of it."""
    team, config = current_team(), work.config
    extractor = work.extractor.open(team.machine)
    pixels = _on_this_machine(work.decoding).array.open()
    data = replace(work.data, pixels=pixels)
    blocks = plan_blocks(extractor, config)[0]
    model = build_model(extractor, work.start, blocks, config=config)
    model.precision = work.precision
    kept = plan_inputs(
        model, extractor, blocks, pixels, data.split.train, hashes=work.hashes, config=config,
        cache=team.machine.cache,
    )  # fmt: skip
    inputs = keep_inputs(
        kept, model, extractor, pixels, config=config, on_images=lambda *_: None,
        threads=team.machine.drawing_threads,
    )  # fmt: skip
    loss = build_loss(
        config.network_loss, class_count=data.class_count, embedding_dim=config.embedding.width,
        generator=phase_generator(config.seed, NETWORK, 0), guidance=work.guidance,
    )  # fmt: skip
    unpack_module(loss, work.loss, name="loss")
    context = PhaseContext(seed=config.seed, device=extractor.device, checkpoint=None)
    fit = NetworkFit(
        model, loss.to(extractor.device), data, inputs=inputs, beliefs=work.beliefs, config=config,
        context=context, team=team,
    )  # fmt: skip
    choose_weights(
        fit.run(), model, data, inputs=inputs, frozen=None, frozen_features=np.zeros((0, 0), dtype=np.float32),
        share=config.network.network_share, team=team,
    )  # fmt: skip
    model.release()
