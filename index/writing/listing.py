"""What a build would embed, found out without writing to the gallery, so that many machines can share the work."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from index.catalog.writer import CatalogWriter, write_catalog
from index.embedding.outcome_files import key_item
from index.progress import Progress, no_progress
from index.sources.items import Place
from index.sources.source import ImageSource
from index.versions.manifest import CATALOG_NAME
from index.versions.versions import read_current
from index.writing.assigned_labels import AssignedLabels
from index.writing.scanning import scan_sources


@dataclass(frozen=True, slots=True)
class Listing:
    """The items to embed, in an order that is the same on every machine; `total` is their number."""

    catalog: CatalogWriter
    total: int

    def items(self, positions: range) -> Iterator[tuple[str, Place]]:
        """The key and place of the items at some positions."""
        sources = self.catalog.sources()
        for row in islice(self.catalog.rows(status="pending"), positions.start, positions.stop):
            source = sources[row.source]
            yield key_item(source.location, row), source.locate(row)


@contextmanager
def open_listing(
    gallery: Path,
    sources: Sequence[ImageSource],
    *,
    labels: AssignedLabels | None = None,
    progress: Progress = no_progress,
) -> Iterator[Listing]:
    """Scan the sources as a build of the gallery would; all that is written is temporary, on this machine.

    Raises:
        InputError: a source cannot be scanned, or no item asked for had a label.
        GalleryError: the gallery is damaged.
    """
    with TemporaryDirectory(prefix="retrieval-listing-") as folder:
        path = Path(folder, CATALOG_NAME)
        current = read_current(gallery) if gallery.is_dir() else None
        if current is not None:
            shutil.copyfile(current.folder / CATALOG_NAME, path)
        with write_catalog(path) as catalog:
            catalog.prepare()
            numbers = catalog.add_sources(sources)
            found = scan_sources(catalog, numbers, labels=labels, progress=progress)
            catalog.record_scan(found, scanned=numbers, restore=False)
            if labels is not None:
                labels.check_used()
            total = catalog.count("pending")
            progress(max(total, 1), max(total, 1))  # the step is done
            yield Listing(catalog, total)
