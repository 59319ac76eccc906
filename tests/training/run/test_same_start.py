"""What several processes cannot train, refused before any work; the rest is in test_distributed.py."""

from __future__ import annotations

import pytest

from index.errors import InputError
from training.options.resolve import resolve
from training.run.same_start import require_shares


def test_what_processes_cannot_part_is_refused() -> None:
    with pytest.raises(InputError, match="--network-batch-size 16 has no image for each of 17 processes"):
        require_shares(resolve(unfreeze="all", network_batch_size=16), processes=17)
    follows = resolve(backbone="resnet18", weights="none", unfreeze="all", network_batch_norm="train")
    with pytest.raises(InputError, match="--network-batch-norm train takes one process"):
        require_shares(follows, processes=2)
    require_shares(resolve(), processes=1000)
