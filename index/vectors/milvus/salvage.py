"""The vectors of a damaged gallery that its collections still have.

Nothing tells of a row whether its vector is the one that was written, as a checksum tells of a file: a collection is
trusted that was made with the gallery's model, in the rows that a version of the gallery has, where they have norm 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from index.arrays import Ids, unit_rows
from index.errors import GalleryDamagedError
from index.vectors.milvus.collection import STRONG, Collection, batches
from index.vectors.milvus.plans import PLANS
from index.vectors.milvus.server import Server
from index.vectors.milvus.store import IDS_NAME, HeldRows
from index.vectors.shards import read_ids
from index.vectors.store import Salvage
from index.versions.manifest import part_folder, part_start


@dataclass(frozen=True, slots=True)
class MilvusSalvage:
    """Finds the sound rows of the collections that versions name."""

    task: Salvage

    def find(self) -> Iterator[HeldRows]:
        """The rows of each collection, that of the newest version last.

        Raises:
            GalleryError: the server does not answer.
        """
        rows: dict[tuple[str, str], Ids] = {}
        output = self.task.output
        for part in self.task.parts:
            if part.manifest is None or part.manifest.store is None or output not in part.manifest.outputs:
                continue
            place = self.task.uri or part.manifest.store["uri"], part.manifest.part(output).index["collection"]
            has_ids = f"{part_start(output)}{IDS_NAME}" in part.sound
            known = read_ids(part_folder(part.folder, output) / IDS_NAME) if has_ids else part.read_members()
            rows[place] = np.union1d(rows.get(place, known[:0]), known)
        for (uri, name), ids in reversed(rows.items()):
            collection = Collection(Server(uri), name, self.task.width)
            found = self._find_rows(collection, ids)
            if len(found):
                yield HeldRows(found, lambda collection=collection: collection)  # type: ignore[misc]

    def _find_rows(self, collection: Collection, ids: Ids) -> Ids:
        """(n,) int64 rising ids of those of some rows that a collection has, with vectors of norm 1."""
        try:
            noted = collection.find()
        except GalleryDamagedError:
            return ids[:0]
        if noted is None or noted.get("model_sha256") != self.task.model_sha256 or noted.get("index") not in PLANS:
            return ids[:0]
        plan = PLANS[noted["index"]]
        collection.make(noted, kind=plan.type, parameters=plan.build(len(ids)))  # what it lacks of it
        there = np.intersect1d(ids, collection.list_ids(above=-1))
        sound, progress, done = [there[:0]], self.task.begin_step("Reading vectors"), 0
        for part in batches(there, collection.rows_at_once):
            found = collection.fetch(part, level=STRONG)
            usable = [key for key in part.tolist() if key in found and unit_rows(found[key][None]).all()]
            sound.append(np.array(usable, dtype=np.int64))
            done += len(part)
            progress(done, len(there))
        return np.concatenate(sound)
