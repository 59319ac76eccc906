"""A student from folders without labels: it comes to see as its teacher, knows copies, and goes on after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from index.errors import InputError, RunError
from index.images.preprocess import PreprocessConfig
from tests.photos import KINDS, write_photos
from tests.training.pretended_gpu import GPU, PretendedGpu
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor
from training.distill.fit import DistillConfig
from training.distill.run import Tell, distill, load_student

CPU = torch.device("cpu")
SMALL = DistillConfig(
    backbone="shufflenet_v2_x0_5", preprocess=PreprocessConfig(resize=32, crop=32), kind_dim=8, picture_dim=8, epochs=2,
    pictures=8, bank=16, block_epochs=0,
)  # fmt: skip


def _teacher(name: str, device: torch.device) -> Extractor:
    backbone = load_backbone(name, "none", seed=1)
    return Extractor(backbone, PreprocessConfig(resize=40, crop=40), device=device, precision="float32")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures") / "photos"
    write_photos(folder, kinds=KINDS[:3], pictures_per_kind=8, seed=0)
    return folder


def run(
    pictures: Path,
    out: Path,
    *,
    on_images: Tell = lambda *_: None,
    teacher: str = "shufflenet_v2_x0_5",
    device: torch.device = CPU,
    **changes: Any,
) -> dict[str, torch.Tensor]:
    paths, config = sorted(pictures.rglob("*.jpg")), replace(SMALL, **changes)
    distill(
        paths, out, teacher=_teacher(teacher, device), config=config, cache=out.parent / "cache", workers=2,
        on_images=on_images,
    )  # fmt: skip
    return load_file(out / "student.safetensors")


def test_losses_fall_and_are_written_down(pictures: Path, tmp_path: Path) -> None:
    run(pictures, tmp_path / "out", epochs=16)
    lines = [json.loads(line) for line in (tmp_path / "out/epochs.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 17))
    first, *_ = lines
    last = {name: sum(line[name] for line in lines[-4:]) / 4 for name in ("kind", "copies")}  # few steps an epoch
    assert last["kind"] < 0.8 * first["kind"]
    assert last["copies"] < 0.8 * first["copies"]


def test_a_file_that_is_there_twice_is_one_picture(pictures: Path, tmp_path: Path) -> None:
    weights = run(pictures, tmp_path / "out", epochs=1)
    twice = tmp_path / "twice"
    twice.mkdir()
    for number, file in enumerate(sorted(pictures.rglob("*.jpg"))):
        for copy in range(2):
            (twice / f"{number}-{copy}.jpg").write_bytes(file.read_bytes())
    again = run(twice, tmp_path / "again", epochs=1)
    assert all(torch.equal(tensor, again[name]) for name, tensor in weights.items())


KILLED = """
import json, os, signal, sys
from pathlib import Path
from tests.training.distill.test_distill_run import run
pictures, out = map(Path, sys.argv[1:3])

def kill(what, done, _):
    if what == "batches" and done == 2 and (out / "epochs.jsonl").exists():
        os.kill(os.getpid(), signal.SIGKILL)

run(pictures, out, on_images=kill, **json.loads(sys.argv[3]))
"""


def test_on_a_gpu_everything_that_meets_is_there(pictures: Path, tmp_path: Path) -> None:
    in_blocks = {"teacher": "squeezenet1_1", "backbone": "squeezenet1_1", "block_epochs": 1}
    whole = run(pictures, tmp_path / "whole/out", **in_blocks)
    with PretendedGpu():
        found = run(pictures, tmp_path / "gpu/out", device=GPU, **in_blocks)
    assert all(torch.equal(tensor, found[name]) for name, tensor in whole.items())


@pytest.mark.parametrize(
    "shape", [{}, {"teacher": "squeezenet1_1", "backbone": "squeezenet1_1", "block_epochs": 1}],
    ids=["whole", "after its blocks"],
)  # fmt: skip
def test_a_killed_run_goes_on_to_the_same_bits(pictures: Path, tmp_path: Path, shape: dict[str, Any]) -> None:
    whole = run(pictures, tmp_path / "whole/out", **shape)
    out = tmp_path / "killed/out"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(pictures), str(out), json.dumps(shape)], capture_output=True, text=True,
        check=False, env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    resumed = run(pictures, out, **shape)
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())


def test_what_is_held_out_tells_the_threshold_and_the_student_is_read_again(
    pictures: Path, tmp_path: Path
) -> None:
    run(pictures, tmp_path / "out", epochs=1)
    student, made = load_student(tmp_path / "out")
    assert made["pictures"] == 22, "every twentieth of 24 does not teach"
    assert -1 <= made["picture_threshold"] <= 1
    with torch.inference_mode():
        kinds, copies = student(torch.zeros(2, 3, 32, 32))
    assert (kinds.shape, copies.shape) == ((2, 8), (2, 8))


def test_a_checkpoint_of_other_options_is_not_gone_on_with(pictures: Path, tmp_path: Path) -> None:
    run(pictures, tmp_path / "out", epochs=1)
    with pytest.raises(RunError, match=r"begun with other options, .*'lr': 0\.001"):
        run(pictures, tmp_path / "out", epochs=2, lr=0.5)


def test_blocks_cannot_learn_in_all_epochs() -> None:
    with pytest.raises(InputError, match=r"--block-epochs must be less than --epochs \(2\)"):
        replace(SMALL, block_epochs=2)


def test_an_unfinished_student_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"student\.safetensors"):
        load_student(tmp_path)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="none of the 0 files"):
        run(empty, tmp_path / "out")
