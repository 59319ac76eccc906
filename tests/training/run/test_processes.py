"""Which process this is, by the variables that torchrun sets."""

from __future__ import annotations

import pytest

from index.errors import InputError
from training.run.processes import Place


def test_torchruns_variables_say_which_process_this_is() -> None:
    variables = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert Place.read(variables) == Place(rank=3, size=4, local_rank=1)
    assert Place.read({}) == Place.read({**variables, "WORLD_SIZE": "1", "RANK": "0"}) == Place()
    with pytest.raises(InputError, match=r"MASTER_ADDR, MASTER_PORT is not set: start them with torchrun"):
        Place.read({"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"})
    with pytest.raises(InputError, match="must be whole numbers"):
        Place.read({**variables, "RANK": "three"})
