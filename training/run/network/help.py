"""The network stage in the processes beside rank 0: the same steps, on their part of every batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from training.backbone.extract import Extractor
from training.backbone.freed_memory import keep_freed_memory
from training.head.embedding_heads import ProjectionHead
from training.losses.guidance import Guidance
from training.losses.interface import MetricLoss
from training.losses.make_loss import build_loss
from training.network.decoded_images import DecodingPlan
from training.options.config import TrainConfig
from training.options.machine import Machine
from training.run.checkpoint import pack_modules, unpack_module
from training.run.distributed import current_team
from training.run.extraction import SentExtractor
from training.run.network.beliefs import NetworkBeliefs
from training.run.network.blocks import build_model, plan_blocks
from training.run.network.choice import choose_weights
from training.run.network.data import NetworkData
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
    machine: Machine

    @classmethod
    def of(
        cls, loss: MetricLoss, data: NetworkData, *, images: Sequence[LabelledImage], decoding: DecodingPlan,
        extractor: Extractor, start: ProjectionHead, beliefs: NetworkBeliefs, guidance: Guidance | None,
        config: TrainConfig, precision: torch.dtype, machine: Machine,
    ) -> NetworkWork:  # fmt: skip
        """Of what rank 0 begins with, on the CPU."""
        begun = {name: tensor.detach().cpu() for name, tensor in pack_modules(loss=loss).items()}
        return cls(
            data, [image.sha256 for image in images], decoding, SentExtractor.of(extractor), start.cpu(), begun,
            beliefs, guidance, config, precision, machine,
        )  # fmt: skip


@keep_freed_memory()
def help_training(work: NetworkWork) -> None:
    """Train and read features with rank 0, step by step, and forget all of it."""
    team, config = current_team(), work.config
    extractor = work.extractor.open(work.machine)
    pixels = work.decoding.array.open()
    data = replace(work.data, pixels=pixels)
    blocks = plan_blocks(extractor, config)[0]
    model = build_model(extractor, work.start, blocks, config=config)
    model.precision = work.precision
    kept = plan_inputs(
        model, extractor, blocks, pixels, data.split.train, hashes=work.hashes, config=config,
        cache=work.machine.cache,
    )  # fmt: skip
    inputs = keep_inputs(kept, model, extractor, pixels, config=config, on_images=lambda *_: None)
    loss = build_loss(
        config.network_loss, class_count=data.class_count, embedding_dim=config.embedding.embedding_dim,
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
