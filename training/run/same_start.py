"""Before any work: whether all processes of a training were started alike and see the same files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import PIL
import torch

from index.errors import InputError
from index.text import printable_path
from training.data.datasets import Record
from training.options.config import TrainConfig
from training.run.distributed import Team, current_team
from training.run.run_folder import flatten


def require_same_start(team: Team, *, config: TrainConfig, others: Mapping[str, Any]) -> None:
    """Refuse processes with different options or versions, and more of them than a batch has images.

    Args:
        others: what else was given, by name.

    Raises:
        InputError: naming what differs, or does not fit.
    """
    if team.size == 1:
        return
    versions = {"torch": torch.__version__, "pillow": PIL.__version__}
    team.require_same({**flatten(asdict(config)), **others, **versions})
    require_shares(config, processes=team.size)


def require_shares(config: TrainConfig, *, processes: int) -> None:
    """Refuse what several processes cannot part among themselves.

    Raises:
        InputError: a batch with fewer images, or one that is normalised by itself.
    """
    if not config.network.trains:
        return
    if config.network.network_batch_size < processes:
        raise InputError(
            f"--network-batch-size {config.network.network_batch_size} has no image for each of {processes} "
            "processes: raise it, or start fewer"
        )
    if config.network.network_batch_norm == "train":
        raise InputError(
            "--network-batch-norm train takes one process: statistics of a part are not those of its batch; leave "
            "it out, or start without torchrun"
        )


def require_same_files(records: Sequence[Record]) -> None:
    """Refuse to go on where another process does not have the images that rank 0 has listed.

    Raises:
        InputError: naming the first that is missing there, or has another size.
    """
    team = current_team()
    if team.size > 1:
        paths = [record.path for record in records]
        sizes = [_size(path) for path in paths]
        team.ask(_compare_files, paths, sizes)
        _compare_files(paths, sizes)


def _compare_files(paths: Sequence[Path], sizes: Sequence[int | None]) -> None:
    team = current_team()
    different = [path for path, size in zip(paths, sizes, strict=True) if _size(path) != size]
    for rank, (count, first) in enumerate(team.gather_values((len(different), different[:1]))):
        if count:
            raise InputError(
                f"rank {rank} does not see {count} of the {len(paths)} images as rank 0 does, the first is "
                f"{printable_path(str(first[0]))}: every machine needs the same files at the same paths"
            )


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
