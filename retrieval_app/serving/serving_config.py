"""How much a server takes at once, and how long it lets anybody wait."""

from __future__ import annotations

from dataclasses import dataclass, fields

from index.errors import InputError
from index.threads import usable_cores

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """The limits of one server.

    Attributes:
        threads: that decode, embed and search, one core each; 0 for as many as there are cores.
        photos_waiting: photos from outside that wait to be embedded; one more is refused.
        searches_waiting: searches that wait; one more is refused.
        reads_waiting: pictures and lists that wait to be read; one more is refused.
        batch_photos: photos embedded at once.
        batch_searches: searches answered at once.
        batch_wait_ms: how long a batch waits for more, where requests have lately come that close together.
        request_s: seconds after which a request is given up.
        filter_s: seconds that a condition may take to be looked up.
        upload_s: seconds a body may take to arrive; a photo of 20 MiB takes 160 at a megabit a second.
        upload_window_s: seconds in which a body may pause.
        upload_bytes_a_second: that a body has to arrive with in every such window; the slowest of mobile networks
            manage twice as many.
        max_upload_bytes: of one photo.
        max_upload_pixels: of one photo; a small file can hold many.
        bytes_arriving: that have arrived, of all bodies that are arriving or in use.
        photos_bytes: of the photos that can be asked with again, the most recently used ones.
        picture_cache_bytes: of thumbnails kept in memory.
        poll_s: seconds between two looks for a new version of the gallery.
    """

    threads: int = 0
    photos_waiting: int = 256
    searches_waiting: int = 1024
    reads_waiting: int = 1024
    batch_photos: int = 8
    batch_searches: int = 64
    batch_wait_ms: float = 2.0
    request_s: float = 30.0
    filter_s: float = 10.0
    upload_s: float = 300.0
    upload_window_s: float = 15.0
    upload_bytes_a_second: int = 2048
    max_upload_bytes: int = 20 * MEBIBYTE
    max_upload_pixels: int = 60_000_000
    bytes_arriving: int = 256 * MEBIBYTE
    photos_bytes: int = 64 * MEBIBYTE
    picture_cache_bytes: int = 64 * MEBIBYTE
    poll_s: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("threads", "batch_wait_ms") else 0.01 if field.name == "poll_s" else 1
            if not least <= value:
                raise InputError(f"{field.name} must be at least {least}, got {value}")

    @property
    def workers(self) -> int:
        """Threads that compute."""
        return self.threads or usable_cores()
