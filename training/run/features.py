"""Feature extraction of a run, shared among its processes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
from torch import Tensor

from index.images.preprocess import PreprocessConfig
from index.progress import Progress, no_progress
from training.backbone.backbones import rebuild_backbone, with_features
from training.backbone.extract import ExtractedSet, Extractor, Features, FeatureStore, extract_features, open_store
from training.options.machine import Machine
from training.run.distributed import current_team

_PIECE = 1024  # images whose features go from one process to another at a time


@dataclass(frozen=True, slots=True)
class SentExtractor:
    """An extractor with its current weights, to send to other processes."""

    name: str
    weights: dict[str, Tensor]
    view: str
    pooling: str
    side: int
    preprocess: PreprocessConfig
    precision: str

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
            extractor.precision,
        )

    def open(self, machine: Machine) -> Extractor:
        """Extractor on this process's device."""
        backbone = rebuild_backbone(self.name, self.weights, side=self.side)
        seeing = with_features(backbone, view=self.view, pooling=self.pooling, side=self.side)
        return Extractor(seeing, self.preprocess, device=machine.device, precision=self.precision)


def extract_together(
    paths: Sequence[Path], *, extractor: Extractor, machine: Machine, views: int = 1, progress: Progress = no_progress
) -> tuple[FeatureStore, ExtractedSet]:
    """`extract_features` on rank 0, with a part by each process; the store of rank 0 has all features."""
    team = current_team()
    if team.size > 1:
        team.call_on_others(_help_extracting, paths, views, SentExtractor.of(extractor))

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
    """Store of this machine, and on rank 0 the results of all ranks, by position in all paths.

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
        own_hashes = team.scatter(wanted if team.is_first else None)
        for start in range(0, max(team.gather_values(len(own_hashes))), _PIECE):
            piece = own_hashes[start : start + _PIECE]
            sent: tuple[list[str], Features] | None = (piece, store.load(piece)) if piece else None
            for one in team.collect_values(sent):
                if one is not None:
                    store.add(*one)
    return store, found
