"""Measures embedding, galleries and catalogues of several sizes, each in processes of its own, and keeps that."""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.alone import run_alone
from benchmarks.common.kept import keep
from benchmarks.common.record import find_photos, find_weights, run_retrieval
from benchmarks.indexing.index_images import list_images, read_all, take_evenly
from index.model.in_the_box import find_box
from index.threads import usable_cores

BOX, PLAIN = "the model in the box (128-d and 64-d, half-precision weights)", "MobileNetV2 (1280-d, float32)"
_FAILING = "the measurement ended with {}"


class Kept:
    """The folder of what was measured; what stands there is not measured again."""

    def __init__(self, folder: Path, *, clock: str) -> None:
        self.folder, self.clock = folder.resolve(), clock

    def gallery(self, rows: int, *, turn: int, kinds: Sequence[str], seed: int) -> dict[str, Any]:
        """What each phase of a gallery of so many rows gives, with a flat index and then with each of the kinds."""
        path, work = self.folder / f"gallery-{rows}-{turn}.json", self.folder / f"working-{rows}-{turn}"
        settings = {"folder": str(work), "rows": rows, "seed": seed + turn, "clock": self.clock}

        def run(*phases: str, **more: Any) -> dict[str, Any]:
            _tell(f"gallery of {rows:,}: {', '.join(phases)} {more.get('kind', '')}")
            return run_alone("benchmarks.scale.phases", *phases, settings=settings | more, failing=_FAILING)

        def measure() -> dict[str, Any]:
            shutil.rmtree(work, ignore_errors=True)
            found = run("make") | run("ask", "verify") | run("add one", "remove one", "backup")
            for kind in kinds:
                found[f"reindex {kind}"] = run("reindex", kind=kind)["reindex"]
                found[f"ask {kind}"] = run("ask", catalogue=False)["ask"]
            shutil.rmtree(work)
            return found

        return keep(path, measure)

    def catalogue(self, rows: int, *, seed: int) -> dict[str, Any]:
        """What the operations of a catalogue of so many rows cost."""
        work = self.folder / f"catalogue-{rows}"
        settings = {"folder": str(work), "rows": rows, "seed": seed, "clock": self.clock}

        def measure() -> dict[str, Any]:
            shutil.rmtree(work, ignore_errors=True)
            _tell(f"catalogue of {rows:,}")
            return run_alone("benchmarks.scale.scale_catalog", settings=settings, failing=_FAILING)

        return keep(self.folder / f"catalogue-{rows}.json", measure)

    def embedding(self, counts: Sequence[int], *, photos: Path | None, weights: Path | None) -> dict[str, Any]:
        """Seconds of `retrieval index build` of so many photos, and of all, by model."""
        return keep(self.folder / "embedding.json", lambda: self._embed(counts, photos, weights))

    def _embed(self, counts: Sequence[int], photos: Path | None, weights: Path | None) -> dict[str, Any]:
        paths = list_images(find_photos(photos))
        size = read_all(paths)
        plain = self.folder / "plain.onnx"
        if not plain.exists():
            chosen = ("--backbone", "mobilenet_v2", "--weights", find_weights(weights))
            run_retrieval("export", *chosen, "--out", plain)
        seconds: dict[str, dict[int, float]] = {}
        for name, model in ((BOX, find_box()), (PLAIN, plain)):
            seconds[name] = {}
            for count in (*(count for count in counts if count < len(paths)), len(paths)):
                seconds[name][count] = self._build(model, take_evenly(paths, count))
        cores = 1 if self.clock == "processor" else usable_cores()  # whose seconds are of all cores already
        return {"cores": cores, "file_bytes": size / len(paths), "seconds": seconds}

    def _build(self, model: Path, paths: Sequence[Path]) -> float:
        """Seconds of one whole command, by its own clock or by the processors'."""
        gallery, listed = self.folder / "embedded", self.folder / "photos.txt"
        listed.write_text("".join(f"{path}\n" for path in paths))
        shutil.rmtree(gallery, ignore_errors=True)
        before = _processor_seconds()
        built = run_retrieval("index", "build", model, listed, "--out", gallery, "--no-cache").document
        shutil.rmtree(gallery)
        if built["new_images"] != len(paths):
            sys.exit(f"{built['new_images']} of {len(paths)} photos were indexed; the rate is void")
        return _processor_seconds() - before if self.clock == "processor" else float(built["seconds"])


def _processor_seconds() -> float:
    """Of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tell(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)
