"""Marks: the tags and the split that people give to images, known by the images' bytes like label decisions.

A mark is a field of an image: `tag:NAME`, or `split`, which takes the place of the metadata column of that name.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from index.catalog.rows import SPLIT
from index.errors import InputError
from index.labels.decisions import check_name, check_sha256

PRESENT = "1"
"""The value of a tag that an image has."""
_TAG = "tag:"


@dataclass(frozen=True, slots=True)
class Mark:
    """A tag or the split of an image.

    Attributes:
        sha256: of the image's bytes, hexadecimal.
        field: `tag:NAME` or `split`.
        value: `PRESENT` of a tag, the split's name; None takes the mark away.
        decided_at: UTC, ISO 8601; set by the store.
    """

    sha256: str
    field: str
    value: str | None
    decided_at: str = ""

    @property
    def subject(self) -> str:
        """What it is about, in a file of decisions."""
        return f"{self.field}/{self.sha256}"

    @property
    def meaning(self) -> str | None:
        """What was decided."""
        return self.value

    @property
    def is_undone(self) -> bool:
        """Whether it takes an earlier one back."""
        return self.value is None

    @property
    def tag(self) -> str | None:
        """The name of the tag; None for the split."""
        return self.field.removeprefix(_TAG) if self.field.startswith(_TAG) else None


@lru_cache(maxsize=64)  # a step has thousands of one tag
def tag_field(name: str) -> str:
    """The field of a tag."""
    return _TAG + check_name(name, what="tag")


def check_mark(given: Mark) -> Mark:
    """The mark as it is stored; an InputError where it is none."""
    check_sha256(given.sha256)
    if given.tag is not None:
        if given.value not in (PRESENT, None):
            raise InputError(f"a tag is there or not ({PRESENT!r} or null), got {given.value!r}")
        field = tag_field(given.tag)
        return given if field == given.field else replace(given, field=field)
    if given.field != SPLIT:
        raise InputError(f"a mark is tag:NAME or {SPLIT}, got {given.field!r}")
    return given if given.value is None else replace(given, value=check_name(given.value, what="split"))
