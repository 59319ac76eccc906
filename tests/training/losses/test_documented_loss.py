"""The loss that docs/add-a-loss.md adds: its files are written into a copy of the package, which trains with it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT, files_of
from tests.photos import KINDS, write_photos

_REGISTRY = "LOSSES: Mapping[str, LossEntry] = {\n"


@pytest.mark.slow
def test_the_loss_of_the_page_trains(tmp_path: Path) -> None:
    files = files_of(ROOT / "docs/add-a-loss.md")
    shutil.copytree(ROOT / "training", tmp_path / "training", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "training/losses/cosface.py").write_text(files["cosface.py"])
    registry = tmp_path / "training/options/losses.py"
    before, after = registry.read_text().split(_REGISTRY)
    registry.write_text(before + files["losses.py"] + after)
    write_photos(tmp_path / "photos", kinds=KINDS[:3], pictures_per_kind=6, seed=0)
    options = ("--frozen", "--no-holdout", "--method", "cosface", "--cosface-margin", "0.2", "--out", "run")
    done = subprocess.run(
        [sys.executable, "-m", "training", "photos", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert '"cosface_margin": 0.2' in (tmp_path / "run/config.json").read_text()
