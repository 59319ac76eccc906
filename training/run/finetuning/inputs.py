"""Inputs of fine-tuning: decoded images or cached outputs of the frozen blocks, and the model that takes them."""

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

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
from training.backbone.convolutions import CONVOLUTIONS_VERSION, standing_in
from training.backbone.extract import BATCH_IMAGES, Extractor, resolve_precision
from training.head.embedding_heads import ProjectionHead
from training.network.decoded_images import centre_views, cut_windows, draw_views, draw_windows, require_space
from training.network.kept_inputs import KeptInputs, find_tail
from training.network.model import Block, NetworkModel, choose_blocks, find_blocks, find_units
from training.options.config import TrainConfig
from training.options.finetuning import USUAL_BLOCKS
from training.run.phases import FINETUNING, TrainingJob, Watcher, phase_generator

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SECONDS = 0.3  # for each, at least one step after the first
_MOST_STEPS = 20


def choose_precision(model: NetworkModel, images: torch.Tensor) -> str:
    """`float32` or `bfloat16`, whichever trains faster on these images.

    Hardware without bfloat16 is not tried: it may be a hundred times slower. With it, backward through depthwise
    convolutions may still be slower.
    """
    if resolve_precision("auto", images.device) == torch.float32:
        return "float32"
    before, seconds = model.precision, dict[str, float]()
    try:
        for name, model.precision in PRECISIONS.items():
            seconds[name] = time_step(model, images)
    finally:
        model.precision = before
    return min(seconds, key=lambda name: seconds[name])


def time_step(model: NetworkModel, images: torch.Tensor) -> float:
    """Seconds for a step on (B, H, W, 3) uint8 images, without the optimiser's."""
    started, steps = 0.0, -1  # kernels are chosen and memory is taken in the first step, which does not count
    while steps < 1 or (time.perf_counter() - started < _SECONDS and steps < _MOST_STEPS):
        model(images).square().sum().backward()
        if images.device.type == "cuda":
            torch.cuda.synchronize()
        steps += 1
        if steps == 0:
            started = time.perf_counter()
    model.zero_grad(set_to_none=True)
    return (time.perf_counter() - started) / steps


_SMALLER, _STEP = 0.7, 8  # smaller views as a share of the crop's side; their step in pixels


def plan_blocks(backbone: Backbone, config: TrainConfig, *, side: int) -> list[Block]:
    """Blocks that train; `side` is the image size of the backbone."""
    blocks, last = find_blocks(backbone, side=side), config.finetuning.last_blocks
    if config.finetuning.finetune is None:
        last = min(USUAL_BLOCKS, len(blocks))
    return choose_blocks(blocks, last=last, name=backbone.name)


def view_side(backbone: Backbone, config: TrainConfig) -> int:
    """Size of training views in pixels (with `--view both` of each): smaller than the crop, where the backbone allows.

    Things look larger in random windows than in the centre crop, so smaller training views suit the full size (Touvron
    et al. 2019), at half the cost. Transformers have one size.
    """
    if config.finetuning.image_size is not None:
        return config.finetuning.image_size
    crop = config.input.crop
    side = _STEP * round(_SMALLER * crop / _STEP)  # networks divide it evenly
    if not 0 < side < crop:
        return crop
    try:
        require_input_size(backbone, side)
    except InputError:
        return crop
    return side


def find_precision(job: TrainingJob, model: NetworkModel, pixels: Pixels, rows: Ids, *, side: int) -> str:
    """Precision of fine-tuning: for `auto` measured once, on the first images in `rows` that pass at once."""

    def measure() -> dict[str, str]:
        batch = torch.from_numpy(rows[: job.config.finetuning.images_at_once])
        views = draw_views(pixels, batch, side=side, generator=phase_generator(job.config.seed, FINETUNING, 0))
        return {"precision": choose_precision(model, views.to(model.head.weight.device))}

    if job.machine.precision != "auto":
        return job.machine.precision
    return str(job.run.keep_json("finetuning.json", measure)["precision"])


def build_model(
    extractor: Extractor, head: ProjectionHead, blocks: list[Block], *, config: TrainConfig
) -> NetworkModel:
    """Trainable model around the extractor's backbone, on its device."""
    model = NetworkModel(
        extractor.backbone,
        head,
        blocks,
        whole=config.finetuning.last_blocks is None,
        mean=extractor.mean,
        std=extractor.std,
        convolutions=extractor.convolutions,
    )
    model.head.to(extractor.device)
    return model


_WHOLE = slice(None)
_TRIED = 4  # images on which a tail is compared with the whole network
_WAITING = 2  # batches that are drawn, beside those that threads are drawing


class FinetuneInputs:
    """Random views for training, and the plain view for evaluation.

    Args:
        pixels: (N, R, R, 3) uint8.
        side: size of random views in pixels.
        threads: that draw views ahead; 0 draws on demand.
        centre: cached outputs for evaluation; without them images pass the whole network.

    `waited_s` are seconds that training waited for batches.
    """

    def __init__(
        self, extractor: Extractor, pixels: Pixels, *, side: int, threads: int = 0, centre: KeptInputs | None = None
    ) -> None:
        self._extractor, self._pixels, self._side, self.threads = extractor, pixels, side, threads
        self.waited_s, self.kept_bytes = 0.0, 0 if centre is None else centre.array.bytes
        self._pins = threads > 0 and torch.cuda.is_available()
        self._centre = None if centre is None else (centre, centre.array.open())

    def draw(self, rows: Tensor, *, generator: torch.Generator) -> Tensor:
        """(B, side, side, 3) uint8 new random views of the images `rows` (B,)."""
        return cut_windows(self._pixels, rows, draw_windows(len(rows), generator), side=self._side)

    def draw_each(
        self,
        batches: Iterable[Tensor],
        *,
        generator: torch.Generator,
        part_of: Callable[[int], slice] = lambda _: _WHOLE,
    ) -> Generator[tuple[Tensor, Tensor], None, None]:
        """Batches of rows with their views, which threads draw ahead.

        The generator is called in the batches' order, so that threads do not change the result.
        """

        def ask(rows: Tensor) -> tuple[Tensor, Tensor]:
            return rows, draw_windows(len(rows), generator)

        def draw(asked: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            rows, windows = asked
            part = part_of(len(rows))
            views = cut_windows(self._pixels, rows[part], windows[part], side=self._side)
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
        """(n, F) float32 features of the plain views by the current weights, on the CPU."""
        parts, extractor = [], self._extractor
        for start in range(0, len(rows), BATCH_IMAGES):
            part = rows[start : start + BATCH_IMAGES]
            if self._centre is None:
                views = centre_views(self._pixels, torch.from_numpy(part), crop=extractor.preprocess.crop)
                parts.append(extractor.extract(views).cpu())
            else:
                kept, opened = self._centre
                parts.append(extractor.finish(kept.tail.run_kept, torch.from_numpy(opened[part])).cpu())
            progress(min(start + BATCH_IMAGES, len(rows)), len(rows))
        return torch.cat(parts).clone()  # not of inference mode any more


def keep_centres(
    extractor: Extractor,
    blocks: Sequence[Block],
    pixels: Pixels,
    *,
    hashes: Sequence[str],
    config: TrainConfig,
    cache: Path,
    watcher: Watcher,
) -> KeptInputs | None:
    """Cached outputs of the frozen blocks for the centre crops; None where that does not pay."""
    if config.finetuning.last_blocks is None:
        return None  # what belongs to no block trains too
    backbone, network, crop = extractor.backbone, extractor.backbone.network, extractor.preprocess.crop
    first = blocks[0].names[0]
    units = find_units(backbone, side=crop)
    front = [network.get_submodule(name) for name in units[: units.index(first)]]
    if not any(True for unit in front for _ in unit.parameters()):
        return None  # nothing worth skipping comes before the first block

    def centres(rows: Ids) -> Tensor:
        views = centre_views(pixels, torch.from_numpy(rows), crop=crop)
        return arrange_images(torch.as_tensor(views).to(extractor.device), extractor.mean, extractor.std)

    tried = centres(np.arange(min(_TRIED, len(pixels))))
    tail = find_tail(backbone.module, front, network.get_submodule(first), side=crop, images=tried)
    if tail is None:
        return None
    how = {
        "backbone": backbone.name,
        "weights": backbone.hash_weights(),
        "first": first,
        "preprocess": extractor.preprocess.to_json(),
        "view": backbone.view,
        "dtype": str(extractor.dtype),
        "convolutions": CONVOLUTIONS_VERSION,
    }
    centre = KeptInputs.plan(tail, hashes=hashes, how=how, cache=cache)
    if centre.array.bytes >= pixels.size:
        return None  # decoded images take less room
    require_space([centre.array], what="cached outputs of the frozen blocks", instead="choose another --cache")
    watcher.on_note(f"fine-tuning: outputs of the frozen blocks take {centre.array.bytes / 1e6:,.0f} MB of --cache")
    with standing_in(extractor.convolutions):
        centre.fill(
            centres, dtype=extractor.dtype, progress=partial(watcher.on_images, "centres through the frozen blocks")
        )
    return centre
