"""Serving limits: how much a server takes at once, and how long a request may wait."""

from dataclasses import dataclass

from index.config_fields import check_fields, option
from index.threads import usable_cores

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """Searches, photos, bodies and what waits; fields with a help text are options of `retrieval serve`."""

    threads: int = option(
        0, "Threads that decode, embed and search; 0 for one more than cores, as one of them often waits.", at_least=0
    )
    photos_waiting: int = option(256, "Photos from outside that wait to be embedded; one more is refused.", at_least=1)
    searches_waiting: int = option(1024, "Searches that wait; one more is refused.", at_least=1)
    reads_waiting: int = option(1024, "Images and lists that wait to be read; one more is refused.", at_least=1)
    filters_waiting: int = 64
    reader_threads: int = 4  # of images and lists; most of the time they wait for files
    filter_threads: int = 2
    batch_photos: int = 8  # embedded at once
    batch_searches: int = 64  # answered at once
    request_s: float = option(30.0, "Seconds after which a request is given up.", at_least=1)
    filter_s: float = 10.0  # that a condition may take
    duplicates_wait_s: float = 2.0  # that a search waits for groups of near-duplicates that are still computed
    upload_s: float = 300.0  # that a body may take to arrive
    upload_window_s: float = option(15.0, "Seconds in which a body may pause.", at_least=1)
    upload_bytes_a_second: int = 2048  # that a body has to arrive with in every such window
    max_upload_bytes: int = option(20 * MEBIBYTE, "Bytes of one photo.", at_least=1)
    max_upload_pixels: int = option(60_000_000, "Pixels of one photo; a small file can hold many.", at_least=1)
    max_json_bytes: int = MEBIBYTE  # of a body other than a photo
    bytes_arriving: int = option(
        256 * MEBIBYTE, "Bytes of all bodies that are arriving or in use, of what has arrived of them.", at_least=1
    )
    photos_bytes: int = option(
        64 * MEBIBYTE, "Bytes of the photos that can be asked with again, the most recently used ones.", at_least=1
    )
    crops_kept: int = 1024  # vectors of parts of images that are remembered
    thumbnail_cache_bytes: int = option(64 * MEBIBYTE, "Bytes of thumbnails kept in memory.", at_least=1)
    show_gps: bool = option(
        False,
        "Show where photos were taken, if the gallery keeps it (`index build --gps`), to everyone who may search; "
        "without it no answer, filter or export has gps_latitude and gps_longitude.",
    )
    poll_s: float = option(1.0, "Seconds between two looks for a new version of the gallery.", at_least=0.01)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def workers(self) -> int:
        """Threads that compute."""
        return self.threads or usable_cores() + 1
