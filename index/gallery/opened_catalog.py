"""The open catalogue of a gallery version, with a cache of rows."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

from index.catalog.decided_rows import NOTHING_DECIDED, DecidedRows
from index.catalog.reader import Catalog, read_catalog
from index.catalog.rows import CatalogRow, has_spoiled_labels, has_spoiled_metadata
from index.errors import GalleryDamagedError, GalleryError
from index.recent import RecentlyUsed
from index.text import printable_path
from index.versions.manifest import CATALOG_NAME, Version
from index.versions.versions import find_version

logger = logging.getLogger(__name__)
_REMEMBERED_BYTES = 8 << 20  # of rows, about
_BYTES_OF_A_ROW = 1000  # beside its path and metadata


class OpenedCatalog:
    """The catalogue of a version, with a cache of rows."""

    def __init__(self, gallery: Path, version: Version, *, filter_s: float | None) -> None:
        self._gallery, self._digest, self._filter_s = gallery, version.manifest_sha256, filter_s
        self._path = version.folder / CATALOG_NAME
        self._file = _identify(self._path)
        self._rows: RecentlyUsed[int, CatalogRow] = RecentlyUsed(
            _REMEMBERED_BYTES, size=lambda row: _BYTES_OF_A_ROW + len(row.path) + len(row.metadata_json or "")
        )
        with read_catalog(self._path) as catalog:
            self._has_spoiled_labels = has_spoiled_labels(catalog.connection)
        if self._has_spoiled_labels:
            logger.warning("%s: some images have labels that are none; they are left out", gallery.name)

    @contextmanager
    def read(self, *, limited: bool, asks_metadata: bool, decided: DecidedRows = NOTHING_DECIDED) -> Iterator[Catalog]:
        self._require_same_file()
        limit_s = self._filter_s if limited else None
        spoiled = self._has_spoiled_labels or ((limited or asks_metadata) and self._has_spoiled_metadata)
        with read_catalog(self._path, limit_s=limit_s, spoiled=spoiled, decided=decided) as catalog:
            yield catalog

    def find(self, ids: Iterable[int]) -> dict[int, CatalogRow]:
        """As `Catalog.find`, without decisions; cached, because reading the file takes as long as a search."""
        wanted = list(ids)
        rows = {image_id: row for image_id in wanted if (row := self._rows.get(image_id)) is not None}
        if missing := [image_id for image_id in wanted if image_id not in rows]:
            with self.read(limited=False, asks_metadata=False) as catalog:
                rows |= (found := catalog.find(missing))
            for image_id, row in found.items():
                self._rows.put(image_id, row)
        else:
            self._require_same_file()  # as every reading does
        return rows

    @cached_property
    def _has_spoiled_metadata(self) -> bool:
        """Computed when SQL reads metadata: a million rows take half a second."""
        with read_catalog(self._path) as catalog:
            spoiled = has_spoiled_metadata(catalog.connection)
        if spoiled:
            logger.warning("%s: some images have metadata that is none; it is left out", self._gallery.name)
        return spoiled

    def _require_same_file(self) -> None:
        if _identify(self._path) == self._file:
            return
        shown, digest = printable_path(str(self._path)), ""  # the open vectors are of the old one
        with suppress(GalleryError):
            digest = find_version(self._gallery).manifest_sha256
        if digest == self._digest:  # no writer of galleries does that
            sound = "open it again where `retrieval index verify` finds it sound"
            raise GalleryDamagedError(shown, f"it was changed while it was open; {sound}, else")
        raise GalleryError(shown, "it was replaced while it was open; open it again")


def _identify(path: Path) -> tuple[int, int, int] | None:
    """Device, inode and time of a file, to notice a replaced one; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns
