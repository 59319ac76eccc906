"""How fast this machine trains parts of a network: some steps of each are taken on real images, and taken back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from index.images.image_files import read_image
from index.images.preprocess import Pixels, PreprocessConfig, resize_image
from index.threads import map_ahead
from training.backbone.extract import BATCH_IMAGES, Extractor
from training.confidence.top_confidences import TopConfidences
from training.head.embedding_heads import ProjectionHead
from training.losses.guidance import Guidance
from training.losses.make_loss import build_loss
from training.network.blocks import Block
from training.network.model import NetworkModel
from training.network.precision import PRECISIONS
from training.network.weights import average_weights, copy_weights, load_weights
from training.options.config import TrainConfig
from training.run.network.beliefs import NetworkBeliefs
from training.run.network.blocks import build_model, measure_precision, plan_blocks
from training.run.network.data import NetworkData
from training.run.network.fit import NetworkFit
from training.run.network.inputs import InputPlan, NetworkInputs, keep_inputs, plan_inputs
from training.run.network.plan import name_depth
from training.run.phases import NETWORK, PhaseContext, phase_generator
from training.run.trial_splits import Split

SAMPLE = 16  # images
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


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds an image, where one depth trains.

    Attributes:
        step: of a step; on views that are kept where `front` is a number.
        a_pass: of a pass without training, as judging takes it.
        front: to keep a view; None where views are not kept.
        centre: to keep what judging takes; 0 where that is not kept.
    """

    step: float
    a_pass: float
    front: float | None
    centre: float


class SpeedTrial:
    """Steps of the real loop on a sample. Of the backbone's weights nothing is changed in the end.

    Args:
        pixels: (n, R, R, 3) uint8.
        share: of all images that train.
        class_count: C, for losses with proxies.
        precision: of the steps; None has it chosen by `settle_precision`.
        threads: that draw views while others are trained on.
    """

    def __init__(
        self, extractor: Extractor, pixels: Pixels, *, share: float, class_count: int, config: TrainConfig,
        guidance: Guidance | None, precision: torch.dtype | None, threads: int = 0,
    ) -> None:  # fmt: skip
        self._extractor, self._config, self._guidance, self._threads = extractor, config, guidance, threads
        labels = (np.arange(len(pixels)) // 2 % class_count).astype(np.int64)  # losses over pairs find some
        nothing = np.zeros(0, dtype=np.int64)
        self._data = NetworkData(
            pixels, labels, class_count, Split(np.arange(max(1, round(share * len(pixels)))), nothing, nothing)
        )
        self._images = 0
        self.precision = precision

    def settle_precision(self, depth: int | None) -> None:
        """Choose the precision, where it is not given, by the steps of this depth."""
        if self.precision is not None:
            return
        config, _, model = self._build(depth)
        pixels, device = self._data.pixels, self._extractor.device
        found = measure_precision(model, pixels, np.arange(len(pixels)), config=config, device=device)
        self.precision = PRECISIONS[found]
        model.release()

    def _build(self, depth: int | None) -> tuple[TrainConfig, list[Block], NetworkModel]:
        """With as many epochs that views are kept, where they can be."""
        config = self._config
        network = replace(
            config.network, unfreeze=name_depth(depth), network_epochs=config.network.network_views + 1
        )
        config = replace(config, network=network)
        dim = config.embedding.width
        head = ProjectionHead(torch.eye(dim, self._extractor.backbone.feature_dim), torch.full((dim,), 0.01))
        blocks = plan_blocks(self._extractor, config)[0]
        model = build_model(self._extractor, head, blocks, config=config)
        model.precision = self.precision or torch.float32
        return config, blocks, model

    def time_depth(self, depth: int | None) -> Speed:
        """As many blocks train as are named; the first depth that is timed says on how many images."""
        config, blocks, model = self._build(depth)
        before = copy_weights(model)
        try:
            with TemporaryDirectory() as folder:
                inputs, front, centre = self._time_fronts(model, blocks, config=config, cache=Path(folder))
                rows = np.arange(BATCH_IMAGES) % len(self._data.pixels)
                a_pass = _time(lambda: inputs.read_features(rows)) / BATCH_IMAGES
                step = self._prepare_step(model, inputs, config)
                model.learn(True)
                if self._images == 0:
                    self._images = self._choose_images(step)
                seconds = self._beside_drawing(_time(lambda: step(self._images)), inputs)
                return Speed(seconds / self._images, a_pass, front, centre)
        finally:
            load_weights(model, before)
            model.zero_grad(set_to_none=True)
            model.release()

    def _beside_drawing(self, step: float, inputs: NetworkInputs) -> float:
        """Seconds of a step whose views threads have drawn during others, of one that draws them first."""
        if not self._threads:
            return step
        rows, generator = self._choose_rows(self._images), phase_generator(self._config.seed, NETWORK, 0)
        drawing = _time(lambda: inputs.draw(rows, epoch=1, generator=generator))
        return max(step - drawing, drawing / self._threads)

    def _choose_rows(self, images: int) -> torch.Tensor:
        return torch.arange(images) % len(self._data.split.train)

    def _time_fronts(
        self, model: NetworkModel, blocks: Sequence[Block], *, config: TrainConfig, cache: Path
    ) -> tuple[NetworkInputs, float | None, float]:
        """Inputs as the run will have them, and the seconds to keep a view, and the usual view of an image."""
        pixels, rows = self._data.pixels, self._data.split.train
        plan = plan_inputs(
            model, self._extractor, blocks, pixels, rows, hashes=["" for _ in pixels], config=config, cache=cache
        )
        keep = partial(
            keep_inputs, model=model, extractor=self._extractor, pixels=pixels, config=config, on_images=_quiet
        )
        keep(plan)  # kernels are chosen and memory is taken the first time
        for kept in (plan.views, plan.centre):
            if kept is not None:
                kept.array.file.unlink()
        begun = time.perf_counter()
        keep(InputPlan(None, plan.centre))
        middle = time.perf_counter()
        inputs = keep(plan)
        ended = time.perf_counter()
        front = None if plan.views is None else (ended - middle) / plan.views.array.shape[0]
        return inputs, front, 0.0 if plan.centre is None else (middle - begun) / len(pixels)

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

    def _prepare_step(
        self, model: NetworkModel, inputs: NetworkInputs, config: TrainConfig
    ) -> Callable[[int], None]:
        """A step of the loop, on as many images as it is called with."""
        fit = self._make_fit(model, inputs, config)
        start, average = copy_weights(model), copy_weights(model)
        penalty = fit.hold_back(start)
        generator = phase_generator(config.seed, NETWORK, 0)

        def step(images: int) -> None:
            rows = self._choose_rows(images)
            views = inputs.draw(rows, epoch=1, generator=generator)
            loss = fit.step(rows, views, 0, penalty=penalty)
            average_weights(average, model.moving(), keep=config.network.network_average, step=0)
            loss.item()  # waits for the device

        return step

    def _make_fit(self, model: NetworkModel, inputs: NetworkInputs, config: TrainConfig) -> NetworkFit:
        device, count = self._extractor.device, self._data.class_count
        loss = build_loss(
            config.network_loss, class_count=count, embedding_dim=config.embedding.width,
            generator=phase_generator(config.seed, NETWORK, 0), guidance=self._guidance,
        ).to(device)  # fmt: skip
        labels = torch.from_numpy(self._data.labels)
        beliefs = NetworkBeliefs(
            torch.ones(len(labels)) if config.network_loss.weighs_samples else None,
            _believe_labels(labels) if config.network_loss.needs_confidences else None,
        )
        context = PhaseContext(seed=config.seed, device=device, checkpoint=None)
        return NetworkFit(model, loss, self._data, inputs=inputs, beliefs=beliefs, config=config, context=context)


def _believe_labels(labels: torch.Tensor) -> TopConfidences:
    """All confidence in the (N,) labels."""
    return TopConfidences(labels[:, None], torch.ones(len(labels), 1), torch.zeros(len(labels)))


def _quiet(*_: object) -> None:
    """Tell nobody."""


def _time(run: Callable[[], object]) -> float:
    run()  # kernels are chosen and memory is taken the first time
    started, times = time.perf_counter(), 0
    while times == 0 or time.perf_counter() - started < _SECONDS:
        run()
        times += 1
    return (time.perf_counter() - started) / times
