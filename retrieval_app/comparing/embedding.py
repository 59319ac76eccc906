"""Labelled images of a comparison, and the vectors of its candidates for them."""

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from index.durable import hash_file
from index.embedding.cached import open_cached_engine
from index.errors import ImageError, InputError
from index.evaluation.evaluate import gather_group_sources
from index.evaluation.groups import GroupSources, name_group, number_equal
from index.items import FoundItem, Place
from index.model.embedder import Embedder
from index.outputs import SEMANTIC
from index.progress import Progress, StepProgress, no_progress
from index.sources.reading import read_place
from index.sources.registry import find_source
from index.text import printable_path
from index.threads import map_ahead, usable_cores
from index.writing.scanning import AssignedLabels
from retrieval_app.comparing.public import MODEL, Candidate

_HASHED_AHEAD = 64
UNLABELLED = "unlabelled"  # beside the reasons of unusable files


@dataclass(frozen=True, slots=True)
class Images:
    """Labelled images of a source, their places with the SHA-256 of their bytes, and counts of others by reason."""

    source: str
    items: Sequence[FoundItem]
    places: Sequence[Place]
    skipped: Counter[str]

    def group_sources(self) -> GroupSources:
        """Sources of groups, beside embeddings."""
        given = [name_group(item.metadata) for item in self.items]
        return gather_group_sources(
            self.places, given=given, copies=number_equal([str(place.sha256) for place in self.places])
        )


def read_images(source: str, *, labels_file: Path | None = None, progress: Progress = no_progress) -> Images:
    """Find every labelled image of a source, and hash it; a `labels_file` replaces all other labels."""
    found, skipped, given = find_source(source), Counter[str](), None
    if labels_file is not None:
        given = AssignedLabels(labels_file)
    items = list[FoundItem]()
    for item in found.scan():
        if item.problem is None and given is not None:
            item = given.label(item, os.path.join(found.root, item.path))
        if item.problem is not None:
            skipped[item.problem.reason] += 1
        elif item.label is None:
            skipped[UNLABELLED] += 1
        else:
            items.append(item)
    if given is not None:
        given.check_used()
    if not items:
        raise InputError(
            f"{printable_path(source)}: none of {skipped[UNLABELLED]} images has a label; give a folder of class "
            "folders, a table of path,label, or --labels FILE"
        )

    def read(item: FoundItem) -> Place | str:
        place = found.locate(item)
        try:
            return replace(place, sha256=hashlib.sha256(read_place(place)).hexdigest())
        except ImageError as error:
            return error.reason

    places = list[Place | str]()
    for place in map_ahead(read, items, workers=usable_cores(), ahead=_HASHED_AHEAD):
        places.append(place)
        progress(len(places), len(items))
    problems = {row: place for row, place in enumerate(places) if isinstance(place, str)}
    return _leave_out(Images(source, items, places, skipped), problems)  # type: ignore[arg-type]


def _leave_out(images: Images, problems: dict[int, str]) -> Images:
    """The images without those rows that have a problem."""
    skipped = images.skipped + Counter(problems.values())
    if len(problems) == len(images.items):
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
        raise InputError(f"no image that every candidate can use: {reasons}", at=images.source)
    items = [item for row, item in enumerate(images.items) if row not in problems]
    places = [place for row, place in enumerate(images.places) if row not in problems]
    return Images(images.source, items, places, skipped)


def embed_candidates(
    candidates: Sequence[Candidate], images: Images, *, cache: Path, workers: int, progress: StepProgress = no_progress
) -> Images:
    """Embed the images with every candidate; returns those that all could use, so that all have the same queries."""
    for number, one in enumerate(candidates, start=1):
        embedding = partial(progress, f"Embedding {number} of {len(candidates)}")
        _embed(one, images, cache=cache, workers=workers, progress=embedding)
    # A model that was exported from another candidate has the training images of that run.
    known = {one.run_id: one.trained_on for one in candidates if one.trained_on is not None}
    problems: dict[int, str] = {}
    for one in reversed(candidates):  # the first one's reason counts
        problems.update(one.problems)
    rows = [row for row in range(len(images.items)) if row not in problems]
    kept = _leave_out(images, problems)
    for one in candidates:
        one.trained_on = known.get(one.run_id, one.trained_on)
        one.vectors = one.vectors[rows]
    return kept


def _embed(candidate: Candidate, images: Images, *, cache: Path, workers: int, progress: Progress) -> None:
    """Embed the images with all outputs, so that the cache serves a later gallery.

    An image that changed since it was hashed has no vector.
    """
    embedder = Embedder(candidate.path if candidate.kind == MODEL else _export(candidate, images, cache), threads=1)
    whole, width = embedder.with_outputs(*embedder.contract.widths), embedder.contract.widths[SEMANTIC]
    vectors = np.zeros((len(images.places), width), dtype=np.float32)
    with open_cached_engine(whole, cache=cache, workers=workers) as engine:
        with closing(engine.embed(enumerate(images.places))) as batches:
            for done, item in enumerate(chain.from_iterable(batches), start=1):
                if item.problem is not None:
                    candidate.problems[item.id] = item.problem.reason
                elif item.sha256 != images.places[item.id].sha256:
                    candidate.problems[item.id] = "changed"
                else:
                    assert item.vector is not None
                    vectors[item.id] = item.vector[:width]
                progress(done, len(images.places))
        candidate.vectors, candidate.run_id = vectors, embedder.contract.run_id
        candidate.embedded, candidate.from_cache = engine.embedded, engine.found
        candidate.per_second = engine.speed()


def _export(candidate: Candidate, images: Images, cache: Path) -> Path:
    """The model file of a finished training run, exported once for its weights; counts the images it was trained on."""
    from export.exports import export_run
    from training.run.run_folder import RunFolder

    run = RunFolder.open(candidate.path)
    trained = {image.sha256 for image in run.read_labels() or ()}
    candidate.trained_on = sum(place.sha256 in trained for place in images.places)
    weights = [hash_file(file)[:16] for file in (run.exported_backbone, run.path / "head.safetensors")]
    model = cache / "exports" / f"{run.run_id}-{'-'.join(weights)}.onnx"
    if not model.exists():
        model.parent.mkdir(parents=True, exist_ok=True)
        export_run(run.path, model)
    return model
