"""How fast this machine trains parts of a network: some steps of each are taken on real images, and taken back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from index.images.image_files import read_image
from index.images.preprocess import Pixels, PreprocessConfig, resize_image
from index.threads import map_ahead
from training.backbone.extract import BATCH_IMAGES, Extractor
from training.head.embedding_heads import ProjectionHead
from training.losses.guidance import Guidance
from training.losses.make_loss import build_loss
from training.network.model import NetworkModel
from training.network.precision import PRECISIONS, choose_precision
from training.network.random_views import centre_views, choose_views
from training.network.weights import average_weights, copy_weights, load_weights
from training.options.config import TrainConfig
from training.run.network.beliefs import NetworkBeliefs
from training.run.network.blocks import build_model, plan_blocks
from training.run.network.data import NetworkData
from training.run.network.fit import NetworkFit
from training.run.network.inputs import NetworkInputs
from training.run.network.plan import name_depth
from training.run.phases import NETWORK, PhaseContext, phase_generator
from training.run.trial_splits import Split

SAMPLE = 64  # images
_SECONDS = 0.3  # for each, at least one step after the first
_QUICK_STEP, _FEW = 0.15, 8  # seconds; images: a slow machine is timed on few, a quick one on a whole batch


@dataclass(frozen=True, slots=True)
class DecodedSample:
    """(n, R, R, 3) uint8 images from all over the data, and the seconds that one took to decode."""

    pixels: Pixels
    seconds: float


def decode_sample(paths: Sequence[Path], preprocess: PreprocessConfig, *, workers: int) -> DecodedSample:
    """As decoding does it for all.

    Raises:
        ImageError: an image that was readable is so no more.
    """

    def read(path: Path) -> Pixels:
        return resize_image(read_image(path, target_side=preprocess.resize).image, preprocess)

    places = np.unique(np.linspace(0, len(paths) - 1, min(SAMPLE, len(paths))).round().astype(int))
    started = time.perf_counter()
    decoded = list(map_ahead(read, [paths[place] for place in places], workers=workers, ahead=SAMPLE))
    return DecodedSample(np.stack(decoded), (time.perf_counter() - started) / len(decoded))


class SpeedTrial:
    """Steps of the real loop on a sample. Of the backbone's weights nothing is changed in the end.

    Args:
        pixels: (n, R, R, 3) uint8.
        class_count: C, for losses with proxies.
        precision: of the steps; None has it chosen on the first depth that is timed, see `precision`.
    """

    def __init__(
        self, extractor: Extractor, pixels: Pixels, *, class_count: int, config: TrainConfig,
        guidance: Guidance | None, precision: torch.dtype | None,
    ) -> None:  # fmt: skip
        self._extractor, self._config, self._guidance = extractor, config, guidance
        labels = (np.arange(len(pixels)) // 2 % class_count).astype(np.int64)  # losses over pairs find some
        nothing = np.zeros(0, dtype=np.int64)
        self._data = NetworkData(pixels, labels, class_count, Split(np.arange(len(pixels)), nothing, nothing))
        self._images = 0
        self.precision = precision

    def time_features(self) -> float:
        """Seconds an image of a pass without training, as judging takes it."""
        rows = torch.arange(BATCH_IMAGES) % len(self._data.pixels)
        views = centre_views(self._data.pixels, rows, crop=self._extractor.preprocess.crop)
        return _time(lambda: self._extractor.extract(views).cpu()) / BATCH_IMAGES

    def time_step(self, last: int | None) -> float:
        """Seconds an image of a step of the last blocks, None for all; the first call says on how many images."""
        config = replace(
            self._config, network=replace(self._config.network, unfreeze=name_depth(last), network_epochs=1)
        )
        backbone = self._extractor.backbone
        dim = config.embedding.embedding_dim
        head = ProjectionHead(torch.eye(dim, backbone.feature_dim), torch.full((dim,), 0.01))
        model = build_model(self._extractor, head, plan_blocks(self._extractor, config)[0], config=config)
        before = copy_weights(model)
        try:
            self._settle_precision(model, config)
            step = self._prepare_step(model, config)
            model.learn(True)
            if self._images == 0:
                self._images = self._choose_images(step)
            return _time(lambda: step(self._images)) / self._images
        finally:
            load_weights(model, before)
            model.zero_grad(set_to_none=True)
            model.release()

    def _choose_images(self, step: Callable[[int], None]) -> int:
        """A whole batch, or fewer images, of which a step takes long enough to be timed."""
        network = self._config.network
        if network.network_chunk is not None and network.network_chunk < network.network_batch_size:
            return min(2 * network.network_chunk, network.network_batch_size)  # in chunks as a batch is
        images = min(_FEW, network.network_batch_size)
        while images < network.network_batch_size:
            step(images)
            started = time.perf_counter()
            step(images)
            if time.perf_counter() - started >= _QUICK_STEP:
                break
            images = min(2 * images, network.network_batch_size)
        return images

    def _prepare_step(self, model: NetworkModel, config: TrainConfig) -> Callable[[int], None]:
        """A step of the loop, on as many images as it is called with."""
        fit = self._make_fit(model, config)
        start, average = copy_weights(model), copy_weights(model)
        penalty = fit.hold_back(start)
        generator = phase_generator(config.seed, NETWORK, 0)

        def step(images: int) -> None:
            rows = torch.arange(images) % len(self._data.pixels)
            loss = fit.step(rows, 0, generator=generator, penalty=penalty)
            average_weights(average, model, keep=config.network.network_average, step=0)
            loss.item()  # waits for the device

        return step

    def _settle_precision(self, model: NetworkModel, config: TrainConfig) -> None:
        if self.precision is None:
            draw = choose_views(crop=self._extractor.preprocess.crop, side=config.network.network_crop)
            rows = torch.arange(min(len(self._data.pixels), config.network.network_batch_size))
            views = draw(self._data.pixels, rows, generator=phase_generator(self._config.seed, NETWORK, 0))
            name = choose_precision(model, views.to(self._extractor.device))
            self.precision = PRECISIONS[name]
        model.precision = self.precision

    def _make_fit(self, model: NetworkModel, config: TrainConfig) -> NetworkFit:
        device, count = self._extractor.device, self._data.class_count
        loss = build_loss(
            config.network_loss, class_count=count, embedding_dim=config.embedding.embedding_dim,
            generator=phase_generator(config.seed, NETWORK, 0), guidance=self._guidance,
        ).to(device)  # fmt: skip
        labels = torch.from_numpy(self._data.labels)
        beliefs = NetworkBeliefs(
            torch.ones(len(labels)) if config.network_loss.weighs_samples else None,
            nn.functional.one_hot(labels, count).float() if config.network_loss.needs_confidences else None,
        )
        context = PhaseContext(seed=config.seed, device=device, checkpoint=None)
        draw = choose_views(crop=self._extractor.preprocess.crop, side=config.network.network_crop)
        inputs = NetworkInputs(self._extractor, self._data.pixels, draw=draw)
        return NetworkFit(model, loss, self._data, inputs=inputs, beliefs=beliefs, config=config, context=context)


def _time(run: Callable[[], object]) -> float:
    run()  # kernels are chosen and memory is taken the first time
    started, times = time.perf_counter(), 0
    while times == 0 or time.perf_counter() - started < _SECONDS:
        run()
        times += 1
    return (time.perf_counter() - started) / times
