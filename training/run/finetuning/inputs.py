"""Inputs of fine-tuning: decoded images or cached outputs of the frozen blocks, and the model that takes them."""

import math
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from index.arrays import Ids
from index.errors import InputError
from index.images.preprocess import Pixels
from index.progress import Progress
from index.threads import map_ahead
from training.backbone.backbones import Backbone, arrange_images, require_input_size
from training.backbone.extract import BATCH_IMAGES, Extractor, resolve_precision
from training.head.embedding_heads import ProjectionHead
from training.network.convolutions import find_convolutions
from training.network.decoded_images import centre_views, cut_windows, draw_views, draw_windows, require_space
from training.network.kept_inputs import KeptInputs, Tail, find_tail
from training.network.model import Block, NetworkModel, choose_blocks, find_blocks, find_units
from training.options.config import TrainConfig
from training.options.finetuning import USUAL_BLOCKS
from training.options.machine import Machine
from training.run.phases import FINETUNING, Watcher, phase_generator

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SECONDS = 1.0  # for each, at least one step after the first
_MOST_STEPS = 20


def choose_precision(model: NetworkModel, images: torch.Tensor) -> str:
    """`float32` or `bfloat16`, whichever trains faster on these images.

    Hardware without bfloat16 is not tried: it may be a hundred times slower. With it, backward through depthwise
    convolutions may still be slower.
    """
    if resolve_precision("auto", images.device) == torch.float32:
        return "float32"
    before = model.precision
    try:
        seconds = {name: _time_a_step(model, images, dtype=dtype) for name, dtype in PRECISIONS.items()}
    finally:
        model.precision = before
        model.zero_grad(set_to_none=True)
    return min(seconds, key=lambda name: seconds[name])


def _time_a_step(model: NetworkModel, images: torch.Tensor, *, dtype: torch.dtype) -> float:
    model.precision = dtype
    _run_a_step(model, images)  # kernels are chosen and memory is taken the first time
    started, steps = time.perf_counter(), 0
    while steps == 0 or (time.perf_counter() - started < _SECONDS and steps < _MOST_STEPS):
        _run_a_step(model, images)
        steps += 1
    return (time.perf_counter() - started) / steps


def _run_a_step(model: NetworkModel, images: torch.Tensor) -> None:
    model(images).square().sum().backward()
    if images.device.type == "cuda":
        torch.cuda.synchronize()


_SMALLER, _STEP = 0.7, 8  # of the crop's side; pixels


def plan_blocks(backbone: Backbone, config: TrainConfig, *, side: int) -> list[Block]:
    """Blocks that train; `side` is the image size of the backbone."""
    blocks, last = find_blocks(backbone, side=side), config.finetuning.last_blocks
    if config.finetuning.finetune is None:
        last = min(USUAL_BLOCKS, len(blocks))
    return choose_blocks(blocks, last=last, name=backbone.name)


def smaller_side(backbone: Backbone, crop: int) -> int:
    """Size of training views in pixels: smaller than the crop, where the backbone allows it.

    Things look larger in random windows than in the centre crop, so smaller training views suit the full size (Touvron
    et al. 2019), at half the cost. Transformers have one size.
    """
    side = _STEP * round(_SMALLER * crop / _STEP)  # networks divide it evenly
    if not 0 < side < crop:
        return crop
    try:
        require_input_size(backbone, side)
    except InputError:
        return crop
    return side


def view_side(config: TrainConfig) -> int:
    """Size of training views in pixels; with `--view both` of each."""
    return config.finetuning.image_size or config.input.crop


def measure_precision(model: NetworkModel, pixels: Pixels, rows: Ids, *, config: TrainConfig) -> str:
    """`float32` or `bfloat16`, whichever trains faster on a batch of the first images in `rows`."""
    batch = torch.from_numpy(rows[: config.finetuning.batch_size])
    generator = phase_generator(config.seed, FINETUNING, 0)
    views = draw_views(pixels, batch, side=view_side(config), generator=generator)
    return choose_precision(model, views.to(model.head.weight.device))


def build_model(
    extractor: Extractor, head: ProjectionHead, blocks: list[Block], *, config: TrainConfig
) -> NetworkModel:
    """Trainable model around the extractor's backbone, on its device."""
    model = NetworkModel(
        extractor.backbone, head, blocks, whole=config.finetuning.last_blocks is None, mean=extractor.mean,
        std=extractor.std, follows_batches=config.finetuning.batch_norm == "train",
        convolutions=find_convolutions(extractor.backbone.module, side=view_side(config)),
    )  # fmt: skip
    model.head.to(extractor.device)
    return model


_WHOLE = slice(None)
_TRIED = 4  # images on which a tail is compared with the whole network
_WAITING = 2  # batches that are drawn, beside those that threads are drawing
_KEPT_DRAWS = 1 << 20  # epochs are fewer


class FinetuneInputs:
    """Random views for training, and the usual view for evaluation.

    Args:
        pixels: (N, R, R, 3) uint8.
        side: size of random views in pixels.
        threads: that draw views ahead; 0 draws on demand.

    Attributes:
        waited_s: seconds that training waited for batches.
        kept_bytes, kept_views: size of the cached outputs, and random views per image in them.
    """

    def __init__(self, extractor: Extractor, pixels: Pixels, *, side: int, threads: int = 0) -> None:
        self._extractor, self._pixels, self._side, self.threads = extractor, pixels, side, threads
        self.waited_s, self.kept_bytes, self.kept_views = 0.0, 0, 0
        self._pins = threads > 0 and torch.cuda.is_available()
        self._views: tuple[KeptInputs, npt.NDArray[Any]] | None = None
        self._centre: tuple[KeptInputs, npt.NDArray[Any]] | None = None

    def take_kept(self, views: KeptInputs | None, centre: KeptInputs | None) -> None:
        """Use these cached outputs from now on; without them images pass the whole network."""
        self._views = None if views is None else (views, views.array.open())
        self._centre = None if centre is None else (centre, centre.array.open())
        self.kept_views = 0 if views is None else views.views

    def draw(self, rows: Tensor, *, epoch: int, generator: torch.Generator, part: slice = _WHOLE) -> Tensor:
        """(n, …) a view each for a part of the images `rows` (B,).

        Cached views take turns over the epochs; others are new.
        """
        windows = draw_windows(len(rows), generator) if self._views is None else None
        return self._show(rows, windows, epoch=epoch, part=part)

    def _show(self, rows: Tensor, windows: Tensor | None, *, epoch: int, part: slice) -> Tensor:
        """Cached views, or the given windows; any thread may call this."""
        if windows is not None:
            return cut_windows(self._pixels, rows[part], windows[part], side=self._side)
        assert self._views is not None
        kept, opened = self._views
        return kept.take(opened, rows[part].numpy(), view=(epoch - 1) % kept.views)

    def draw_each(
        self, batches: Iterable[Tensor], *, epoch: int, generator: torch.Generator,
        part_of: Callable[[int], slice] = lambda _: _WHOLE,
    ) -> Generator[tuple[Tensor, Tensor], None, None]:  # fmt: skip
        """Batches of rows with their views, which threads draw ahead.

        The generator is called in the batches' order, so that threads do not change the result.
        """

        def ask(rows: Tensor) -> tuple[Tensor, Tensor | None]:
            return rows, draw_windows(len(rows), generator) if self._views is None else None

        def draw(asked: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
            rows, windows = asked
            views = self._show(rows, windows, epoch=epoch, part=part_of(len(rows)))
            return rows, views.pin_memory() if self._pins else views

        asked, threads = map(ask, batches), self.threads
        drawn = (draw(one) for one in asked)
        if threads:
            drawn = map_ahead(draw, asked, workers=threads, ahead=threads + _WAITING)
        with closing(drawn):
            while True:
                started = time.perf_counter()
                batch = next(drawn, None)
                self.waited_s += time.perf_counter() - started
                if batch is None:
                    return
                yield batch

    def read_features(self, rows: npt.NDArray[np.int64], *, progress: Progress = lambda *_: None) -> Tensor:
        """(n, F) float32 features of the usual views by the current weights, on the CPU."""
        parts = []
        for start in range(0, len(rows), BATCH_IMAGES):
            parts.append(self._read(rows[start : start + BATCH_IMAGES]).cpu())
            progress(min(start + BATCH_IMAGES, len(rows)), len(rows))
        return torch.cat(parts).clone()  # not of inference mode any more

    def _read(self, rows: npt.NDArray[np.int64]) -> Tensor:
        if self._centre is None:
            crop = self._extractor.preprocess.crop
            return self._extractor.extract(centre_views(self._pixels, torch.from_numpy(rows), crop=crop))
        kept, opened = self._centre
        return self._extractor.finish(kept.tail.run_kept, kept.take(opened, rows, view=0))


def keep_inputs(
    model: NetworkModel, extractor: Extractor, blocks: Sequence[Block], pixels: Pixels, rows: Ids, *,
    hashes: Sequence[str], config: TrainConfig, machine: Machine, watcher: Watcher,
) -> FinetuneInputs:  # fmt: skip
    """Inputs of fine-tuning, with outputs of the frozen blocks cached where that pays; the model then runs its tail.

    Args:
        pixels: (N, R, R, 3) uint8 of all images.
        rows: (n,) images that train.
        hashes: of all N images.
    """
    side = view_side(config)
    views, centre = _choose_kept(model, extractor, blocks, pixels, rows, hashes=hashes, config=config, machine=machine)

    def arrange(shown: Pixels | Tensor) -> Tensor:
        return arrange_images(torch.as_tensor(shown).to(extractor.device), extractor.mean, extractor.std)

    def drawn(rows: Ids, chunk: int) -> Tensor:
        generator = phase_generator(config.seed, FINETUNING, _KEPT_DRAWS + chunk)
        return arrange(draw_views(pixels, torch.from_numpy(rows), side=side, generator=generator))

    def usual(rows: Ids, _: int) -> Tensor:
        return arrange(centre_views(pixels, torch.from_numpy(rows), crop=extractor.preprocess.crop))

    inputs = FinetuneInputs(extractor, pixels, side=side, threads=machine.drawing_threads)
    what = [] if views is None else [f"{views.views} random views of an image"]
    what += [] if centre is None else ["the centre crop"]
    if kept := [one for one in (views, centre) if one is not None]:
        inputs.kept_bytes = sum(one.array.bytes for one in kept)
        require_space(
            [one.array for one in kept], what="cached outputs of the frozen blocks",
            instead="choose another --cache, or fewer --cached-views",
        )  # fmt: skip
        watcher.on_note(
            f"fine-tuning: outputs of the frozen blocks for {' and '.join(what)} take "
            f"{inputs.kept_bytes / 1e6:,.0f} MB of --cache"
        )
    if views is not None:
        progress = partial(watcher.on_images, "views through the frozen blocks")
        views.fill(drawn, dtype=model.precision, progress=progress)
    if centre is not None:
        progress = partial(watcher.on_images, "centres through the frozen blocks")
        centre.fill(usual, dtype=extractor.dtype, progress=progress)
    model.tail = None if views is None else views.tail
    inputs.take_kept(views, centre)
    return inputs


def _choose_kept(
    model: NetworkModel, extractor: Extractor, blocks: Sequence[Block], pixels: Pixels, rows: Ids, *,
    hashes: Sequence[str], config: TrainConfig, machine: Machine,
) -> tuple[KeptInputs | None, KeptInputs | None]:  # fmt: skip
    """Random views and centre crops to cache: those that take less room than the decoded images."""
    options, crop = config.finetuning, extractor.preprocess.crop
    if options.last_blocks is None:
        return None, None  # what belongs to no block trains too
    side = view_side(config)
    tail = _find(extractor, blocks, pixels, side=side)
    usual = tail if side == crop else _find(extractor, blocks, pixels, side=crop)
    how = {
        "backbone": extractor.backbone.name, "weights": extractor.backbone.hash_weights(),
        "first": blocks[0].names[0], "preprocess": extractor.preprocess.to_json(), "view": extractor.backbone.view,
    }  # fmt: skip
    views = centre = None
    if usual is not None:
        centred = {**how, "dtype": str(extractor.dtype)}
        all_rows = np.arange(len(hashes))
        centre = KeptInputs.plan(usual, all_rows, hashes=hashes, views=1, how=centred, cache=machine.cache)
    if tail is not None and 0 < options.cached_views < (options.epochs or math.inf):
        drawn = {**how, "dtype": str(model.precision), "side": side, "seed": config.seed}
        views = KeptInputs.plan(
            tail, rows, hashes=[hashes[row] for row in rows], views=options.cached_views, how=drawn,
            cache=machine.cache,
        )  # fmt: skip
    centre_bytes = 0 if centre is None else centre.array.bytes
    if views is not None and views.array.bytes + centre_bytes >= pixels.size:
        views = None
    if views is None and centre_bytes >= pixels.size:
        centre = None
    return views, centre


def _find(extractor: Extractor, blocks: Sequence[Block], pixels: Pixels, *, side: int) -> Tail | None:
    """The network from its first trainable block, if anything worth skipping comes before it."""
    backbone, network = extractor.backbone, extractor.backbone.network
    units = find_units(backbone, side=extractor.preprocess.crop)
    first = blocks[0].names[0]
    front = [network.get_submodule(name) for name in units[: units.index(first)]]
    if not any(True for unit in front for _ in unit.parameters()):
        return None
    rows = torch.arange(min(_TRIED, len(pixels)))
    images = torch.from_numpy(centre_views(pixels, rows, crop=side)).to(extractor.device)
    return find_tail(
        backbone.module, front, network.get_submodule(first), side=side,
        images=arrange_images(images, extractor.mean, extractor.std),
    )  # fmt: skip
