"""The bytes of an item, read from its place."""

from __future__ import annotations

import hashlib
import os

from index.errors import ImageError
from index.images.image_files import CheckContent, check_content, check_size, modified_ns, open_file, read_bytes
from index.network.remote_store import in_a_hurry
from index.sources.archive_members import Member, is_zip_name, read_member
from index.sources.archive_scan import is_compressed
from index.sources.items import Place
from index.sources.spool import Spooled, spool_local

CHANGED = "changed"
"""The reason why bytes are not given that are others than were indexed."""


def read_place(place: Place, *, check: CheckContent = check_content) -> bytes:
    """The bytes of one item, wherever they are; any number of threads may read at once.

    Raises:
        ImageError: they cannot be read, the check refuses how they begin, or the archive is not the one that was
            scanned.
    """
    return (place.reader or read_local)(place, check=check)


def read_local(place: Place, *, check: CheckContent = check_content) -> bytes:
    """As `read_place`, of a file of this machine or a member of an archive."""
    if place.offset is None or place.size_bytes is None:
        return read_bytes(place.file, check=check)
    check_size(place.size_bytes, name=place.name)
    with open_file(place.file) as file:
        if place.mtime_ns not in (None, modified_ns(os.fstat(file.fileno()))):
            detail = "the archive changed since it was scanned"
            raise ImageError(path=place.name, reason="unreadable", detail=detail)
        if not is_compressed(place.file.name):
            return read_spooled(Spooled(place.file), place, check=check)
    return read_spooled(spool_local(place.file), place, check=check)


def read_spooled(spooled: Spooled, place: Place, *, check: CheckContent) -> bytes:
    """The member at a place, of its archive where that can be read."""
    assert place.offset is not None
    assert place.size_bytes is not None
    with open_file(spooled.file) as file:
        member = Member(place.name, place.offset, place.size_bytes)
        return read_member(file.fileno(), member, is_zip=is_zip_name(spooled.file), check=check)


def read_indexed(place: Place) -> bytes:
    """As `read_place`, of bytes that are still those that were indexed, for somebody who waits for them."""
    with in_a_hurry():
        data = read_place(place)
    if place.sha256 is not None and hashlib.sha256(data).hexdigest() != place.sha256:
        detail = "the file is not the one that was indexed; bring the gallery up to date: retrieval index update"
        raise ImageError(path=place.name, reason=CHANGED, detail=detail)
    return data
