"""Feature extraction by all processes of a training: each decodes and extracts a part of the images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
from torch import Tensor

from index.images.preprocess import PreprocessConfig
from index.progress import Progress, no_progress
from training.backbone.backbones import load_backbone, with_features
from training.backbone.extract import ExtractedSet, Extractor, Features, FeatureStore, extract_features, open_store
from training.backbone.graphs import compute_by_graph, keep_graph
from training.data.transforms import DrawViews, fixed_views
from training.options.machine import TORCH, Machine
from training.run.checkpoint import pack_modules, unpack_module
from training.run.distributed import current_team

_PIECE = 1024  # images whose features go from one process to another at a time


@dataclass(frozen=True, slots=True)
class SentExtractor:
    """An extractor as other processes are told of it, with the weights that it has now.

    `precision` is torch's, in which a graph is written too.
    """

    name: str
    weights: dict[str, Tensor]
    view: str
    pooling: str
    side: int
    preprocess: PreprocessConfig
    precision: str
    runtime: str

    @classmethod
    def of(cls, extractor: Extractor) -> SentExtractor:
        backbone = extractor.backbone
        packed = {name: tensor.cpu() for name, tensor in pack_modules(backbone=backbone.network).items()}
        return cls(
            backbone.name, packed, backbone.view, backbone.pooling, backbone.side or extractor.preprocess.crop,
            extractor.preprocess, str(extractor.dtype).removeprefix("torch."), extractor.runtime,
        )  # fmt: skip

    def open(self, machine: Machine) -> Extractor:
        """The same on this process's device, by the same runtime: features of two are not put into one store.

        Raises:
            RetrievalError: it has not that runtime.
        """
        backbone = load_backbone(self.name, "none", side=self.side)
        unpack_module(backbone.network, self.weights, name="backbone")
        seeing = with_features(backbone, view=self.view, pooling=self.pooling, side=self.side)
        extractor = Extractor(seeing, self.preprocess, device=machine.device, precision=self.precision)
        if self.runtime == TORCH:
            return extractor
        return compute_by_graph(extractor, self.runtime, keep_graph(extractor, cache=machine.cache))


def extract_together(
    paths: Sequence[Path], *, extractor: Extractor, views: int, machine: Machine, draw: DrawViews = fixed_views,
    progress: Progress = no_progress,
) -> tuple[FeatureStore, ExtractedSet]:  # fmt: skip
    """As `extract_features`, on rank 0: every process decodes and extracts a part, and this one's store has all.

    The others keep theirs in their own machine's cache too.
    """
    team = current_team()
    if team.size > 1:
        team.ask(_help_extracting, paths, views, draw, SentExtractor.of(extractor))

    def tell_all(done: int, _: int) -> None:
        progress(min(done * team.size, len(paths)), len(paths))

    store, found = _extract_part(paths, views, draw, extractor, machine, tell_all)
    return store, ExtractedSet(
        np.concatenate([part.rows for part in found]),
        tuple(chain.from_iterable(part.hashes for part in found)),
        tuple(chain.from_iterable(part.skipped for part in found)),
        sum(part.computed for part in found),
    )


def _help_extracting(paths: Sequence[Path], views: int, draw: DrawViews, sent: SentExtractor) -> None:
    machine = current_team().machine
    _extract_part(paths, views, draw, sent.open(machine), machine, no_progress)


def _extract_part(
    paths: Sequence[Path], views: int, draw: DrawViews, extractor: Extractor, machine: Machine, progress: Progress
) -> tuple[FeatureStore, list[ExtractedSet]]:
    """This machine's store, and on rank 0 what all ranks found, by place in all paths."""
    team, store = current_team(), open_store(machine.cache, extractor, views=views, draw=draw)
    part = team.part_of(len(paths))
    own = extract_features(
        paths[part], store=store, extractor=extractor, views=views, workers=machine.workers, draw=draw,
        progress=progress,
    )  # fmt: skip
    found = team.collect_values(replace(own, rows=own.rows + part.start))
    if team.size > 1:
        store.read_again()  # what the others have put into the same folder
        known = [list(dict.fromkeys(one.hashes)) for one in found]
        wanted = [[sha256 for sha256 in hashes if sha256 not in store] for hashes in known]
        _send_features(store, team.hand_out(wanted if team.is_first else None))
    return store, found


def _send_features(store: FeatureStore, hashes: list[str]) -> None:
    """Put the features of images that rank 0 has not, of which each rank has some, into its store."""
    team = current_team()
    for start in range(0, max(team.gather_values(len(hashes))), _PIECE):
        piece = hashes[start : start + _PIECE]
        sent: tuple[list[str], Features] | None = (piece, store.load(piece)) if piece else None
        for one in team.collect_values(sent):
            if one is not None:
                store.add(*one)
