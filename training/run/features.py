"""Feature extraction of a run, shared among its processes, by torch or an equivalent runtime."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from index.arrays import Vectors
from index.errors import ImageError, InputError, MissingDependencyError, ModelFileError, RunError
from index.images.image_files import read_image
from index.images.preprocess import Pixels, PreprocessConfig, preprocess_image
from index.model.backends.names import AUTO, USUAL_BACKEND
from index.model.backends.registry import Compared, compare, installed_backends
from index.model.checksum import ModelFile
from index.progress import Progress, no_progress
from training.backbone.backbones import Backbone, rebuild_backbone, with_features
from training.backbone.extract import (
    ExtractedSet,
    Extractor,
    Features,
    FeatureStore,
    extract_features,
    keep_freed_memory,
    open_store,
)
from training.backbone.graphs import NoGraphError, compute_by_graph, keep_graph, open_graph
from training.options.machine import EXTRAS, GRAPH_RUNTIMES, TORCH, Machine
from training.run.distributed import current_team
from training.run.phases import TrainingJob
from training.run.run_folder import RunFolder

_PIECE = 1024  # images whose features go from one process to another at a time
# Of features with torch's in float32: a mean cosine, less the mean. Those in float32 have 1.0000; those in bfloat16,
# torch's own among them, .9976 to .9987.
LEAST_AGREEMENT, LEAST_IN_BFLOAT16 = 0.9999, 0.995
_IMAGES = 16
RUNTIME = "runtime.json"  # what computes the features, as torch's `precision` has it; why, and what was compared
LEAST_IMAGES = 3000  # with fewer, writing the graph takes longer than it saves
_UNUSABLE = (NoGraphError, ModelFileError, MissingDependencyError)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SentExtractor:
    """An extractor with its current weights, to send to other processes; `precision` is torch's."""

    name: str
    weights: dict[str, Tensor]
    view: str
    pooling: str
    side: int
    preprocess: PreprocessConfig
    precision: str
    runtime: str

    @classmethod
    def of(cls, extractor: Extractor) -> "SentExtractor":
        backbone = extractor.backbone
        packed = {name: tensor.cpu() for name, tensor in backbone.network.state_dict().items()}
        return cls(
            backbone.name,
            packed,
            backbone.view,
            backbone.pooling,
            backbone.side or extractor.preprocess.crop,
            extractor.preprocess,
            str(extractor.dtype).removeprefix("torch."),
            extractor.runtime,
        )

    def open(self, machine: Machine) -> Extractor:
        """The same extractor on this process's device, by the same runtime."""
        backbone = rebuild_backbone(self.name, self.weights, side=self.side)
        seeing = with_features(backbone, view=self.view, pooling=self.pooling, side=self.side)
        extractor = Extractor(seeing, self.preprocess, device=machine.device, precision=self.precision)
        if self.runtime == TORCH:
            return extractor
        return compute_by_graph(extractor, self.runtime, keep_graph(extractor, cache=machine.cache))


def extract_together(
    paths: Sequence[Path], *, extractor: Extractor, machine: Machine, views: int = 1, progress: Progress = no_progress
) -> tuple[FeatureStore, ExtractedSet]:
    """`extract_features` on rank 0, with a part by each process; the store of rank 0 has all features."""
    team = current_team()
    if team.size > 1:
        team.ask(_help_extracting, paths, views, SentExtractor.of(extractor))

    def tell_all(done: int, _: int) -> None:
        progress(min(done * team.size, len(paths)), len(paths))

    store, found = _extract_part(paths, views, extractor, machine, tell_all)
    return store, ExtractedSet(
        np.concatenate([part.rows for part in found]),
        tuple(chain.from_iterable(part.hashes for part in found)),
        tuple(chain.from_iterable(part.skipped for part in found)),
        sum(part.computed for part in found),
    )


def _help_extracting(paths: Sequence[Path], views: int, sent: SentExtractor) -> None:
    machine = current_team().machine
    _extract_part(paths, views, sent.open(machine), machine, no_progress)


def _extract_part(
    paths: Sequence[Path], views: int, extractor: Extractor, machine: Machine, progress: Progress
) -> tuple[FeatureStore, list[ExtractedSet]]:
    """Store of this machine, and on rank 0 the results of all ranks, by place in all paths.

    The others send rank 0 the features that its store lacks.
    """
    team, store = current_team(), open_store(machine.cache, extractor, views=views)
    part = team.part_of(len(paths))
    own = extract_features(
        paths[part], store=store, extractor=extractor, views=views, workers=machine.workers, progress=progress
    )
    found = team.collect_values(replace(own, rows=own.rows + part.start))
    if team.size > 1:
        store.read_again()  # what the others have put into the same folder
        known = [list(dict.fromkeys(one.hashes)) for one in found]
        wanted = [[sha256 for sha256 in hashes if sha256 not in store] for hashes in known]
        own_hashes = team.hand_out(wanted if team.is_first else None)
        for start in range(0, max(team.gather_values(len(own_hashes))), _PIECE):
            piece = own_hashes[start : start + _PIECE]
            sent: tuple[list[str], Features] | None = (piece, store.load(piece)) if piece else None
            for one in team.collect_values(sent):
                if one is not None:
                    store.add(*one)
    return store, found


def agrees(compared: Compared) -> bool:
    """Whether features of this runtime may replace torch's."""
    return compared.agreement >= (LEAST_IN_BFLOAT16 if compared.precision == "bfloat16" else LEAST_AGREEMENT)


def compare_runtimes(extractor: Extractor, graph: ModelFile, paths: Sequence[Path]) -> dict[str, Compared]:
    """Compare installed runtimes of the graph with torch, by features of some images."""
    exact = Extractor(extractor.backbone, extractor.preprocess, device=extractor.device, precision="float32")
    pixels = read_some(paths, extractor)
    with keep_freed_memory():
        expected: Vectors = exact.extract(pixels).cpu().numpy()
    if not np.isfinite(expected).all():
        raise ModelFileError(graph.path, "it gives features that are not finite")
    found = {}
    for name in GRAPH_RUNTIMES:
        try:
            found[name] = compare(open_graph(graph, name), pixels, expected)
        except (MissingDependencyError, ModelFileError) as error:
            logger.debug("%s is not compared: %s", name, error)
    return found


def read_some(paths: Sequence[Path], extractor: Extractor) -> Pixels:
    """(n, crop, crop, 3) uint8 of at most 16 readable images, spread over the list."""
    step, config, found = max(1, len(paths) // _IMAGES), extractor.preprocess, list[Pixels]()
    for path in (paths[row] for first in range(step) for row in range(first, len(paths), step)):
        try:
            found.append(preprocess_image(read_image(path, target_side=config.resize), config))
        except ImageError:
            continue
        if len(found) == _IMAGES:
            break
    if not found:
        raise InputError(f"none of the {len(paths)} images is readable")
    return np.stack(found)


def require_runtime(machine: Machine, *, trains_network: bool) -> None:
    """Refuse a `--backend` that cannot work with the other options."""
    asked = machine.backend
    if asked in (AUTO, TORCH):
        return
    if trains_network:
        raise InputError(f"--backend {asked} computes features of a frozen backbone: with it, --frozen")
    if machine.device.type != "cpu":
        raise InputError(f"--backend {asked} computes features on the CPU: with it, --device cpu")
    if machine.precision == "bfloat16" and asked == USUAL_BACKEND:
        raise InputError(f"--backend {asked} computes in float32: with it, no --precision bfloat16")
    if asked not in installed_backends():
        raise MissingDependencyError(package=asked, extra=EXTRAS[asked], purpose=f"features by --backend {asked}")


def open_run_extractor(job: TrainingJob, extractor: Extractor, paths: Sequence[Path], *, views: int) -> Extractor:
    """Extractor of a run, by the runtime that it began with, or by one that is selected and noted now.

    `extractor` is torch's; `paths` and `views` say how much is to extract.
    """
    run, machine, asked = job.run, job.machine, job.machine.backend
    if (noted := run.find_json(RUNTIME)) is None:
        noted = _choose_runtime(job, extractor, paths, views=views)
        run.write_json(RUNTIME, noted)
        if noted["compared"]:
            job.watcher.on_note(f"features: by {noted['name']}, {noted['why']}")
    elif asked not in (AUTO, noted["name"], noted["asked"]):
        raise RunError(
            f"{run.path}: cannot resume with other options: its features are by {noted['name']}, --backend is "
            f"{asked!r}; leave it out, or start another run with a new --out"
        )
    if noted["name"] == TORCH:
        return extractor
    try:
        return compute_by_graph(extractor, noted["name"], keep_graph(extractor, cache=machine.cache))
    except _UNUSABLE as error:
        raise RunError(
            f"{run.path}: its features are by {noted['name']}, which cannot compute them now: {error}; put that "
            "right, or start another run with a new --out"
        ) from error


def _choose_runtime(job: TrainingJob, extractor: Extractor, paths: Sequence[Path], *, views: int) -> dict[str, Any]:
    """What computes the features and why, and the runtimes that were compared with torch."""
    machine, asked = job.machine, job.machine.backend
    name, why, compared = TORCH, "as it is named", dict[str, Compared]()
    if asked == AUTO and job.config.finetuning.trains:
        why = "as the network trains, and its features with it"
    elif asked == AUTO and machine.device.type != "cpu":
        why = "on the GPU"
    elif asked == AUTO and USUAL_BACKEND not in installed_backends():
        why = f"as {USUAL_BACKEND} is not installed"
    elif asked == AUTO and (images := views * len(paths)) < LEAST_IMAGES:
        why = f"as {images:,} images are done before another runtime is ready"
    elif asked != TORCH:
        try:
            compared = compare_runtimes(extractor, keep_graph(extractor, cache=machine.cache), paths)
            name, why = _choose(compared, asked, precision=extractor.precision)
        except _UNUSABLE as error:
            logger.warning("features are computed by torch: %s", error)
            why = f"as its graph cannot be used: {error}"
    found = {one: asdict(figures) for one, figures in compared.items()}
    return {"name": name, "asked": asked, "precision": extractor.precision, "why": why, "compared": found}


def reopen_extractor(run: RunFolder, backbone: Backbone, *, device: torch.device, cache: Path) -> Extractor:
    """Extractor of an existing run, for more features; torch in that precision where its runtime is gone."""
    described = run.read_json("features.json")
    name = described.get("runtime", TORCH)
    open_in = partial(Extractor, backbone, run.preprocess())
    if (noted := run.find_json(RUNTIME)) is not None and name != TORCH:
        extractor = open_in(device=torch.device("cpu"), precision=noted["precision"])
        try:
            return compute_by_graph(extractor, name, keep_graph(extractor, cache=cache))
        except _UNUSABLE as error:
            logger.warning("%s: its features are by %s, and now by torch: %s", run.path, name, error)
    return open_in(device=device, precision=described["precision"])


def _choose(compared: Mapping[str, Compared], asked: str, *, precision: str) -> tuple[str, str]:
    """Runtime and reason: the one asked for, or the first, of those that agree with torch.

    In float32 ONNX Runtime is the fastest on most processors; only OpenVINO computes bfloat16.
    """
    agreeing = [name for name, one in compared.items() if agrees(one)]
    for name in compared.keys() - set(agreeing):
        logger.warning(
            "%s gives other features than torch (a cosine of %.4f less the mean), and is not used",
            name,
            compared[name].agreement,
        )
    if asked != AUTO:
        if asked in agreeing:
            return asked, "as it is named"
        return TORCH, f"as {asked} cannot give the same features of this backbone"
    if precision == "bfloat16" and USUAL_BACKEND in agreeing:
        agreeing.remove(USUAL_BACKEND)  # which has no such numbers
    return (agreeing[0], "the first choice of those that agree") if agreeing else (TORCH, "as no other one agrees")
