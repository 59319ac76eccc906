"""The folder for what people made of a gallery, their decisions and uploads, which no build or repair touches.

GALLERY/people/review.sqlite   what they decided about labels and duplicates
GALLERY/people/added/          the images that they sent
GALLERY/people/log.sqlite      who did what, when and from where
GALLERY/people/sessions/       which sessions of browsers were ended
GALLERY/people/incoming/       what is being written of them; whole files are moved out of it
"""

from __future__ import annotations

import os
from pathlib import Path

PEOPLE = "people"
DECISIONS = "review.sqlite"
ADDED = "added"
INCOMING = "incoming"
LOG = "log.sqlite"
ADDED_PLACE = f"{PEOPLE}/{ADDED}"
"""What a catalogue calls the folder of the images that were sent, wherever the gallery lies."""


def people_folder(gallery: Path) -> Path:
    """Where decisions and uploads of a gallery lie."""
    return gallery / PEOPLE


def decisions_file(gallery: Path) -> Path:
    """The decisions of a gallery, where they are or would be."""
    return people_folder(gallery) / DECISIONS


def added_folder(gallery: Path) -> Path:
    """The folder of the images that were sent, without symbolic links: where it is or would be."""
    return Path(os.path.realpath(people_folder(gallery) / ADDED))


def log_file(gallery: Path) -> Path:
    """The log of who did what, where it is or would be."""
    return people_folder(gallery) / LOG


def incoming_folder(gallery: Path) -> Path:
    """Where what is sent is written, until it is whole."""
    return people_folder(gallery) / INCOMING
