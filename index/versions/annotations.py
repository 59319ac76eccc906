"""Annotations folder of a gallery: decisions, uploads and the log. No build or repair changes it.

GALLERY/annotations/review.sqlite   decisions about labels and near-duplicates
GALLERY/annotations/added/          uploaded images
GALLERY/annotations/certificate.sqlite  sample of labels that a certificate rests on
GALLERY/annotations/log.sqlite      log of requests: who, what, when, from where
GALLERY/annotations/sessions/       ended browser sessions
GALLERY/annotations/incoming/       unfinished uploads; whole files are moved to added/
"""

import os
from pathlib import Path

ANNOTATIONS = "annotations"
DECISIONS = "review.sqlite"
ADDED = "added"
INCOMING = "incoming"
LOG = "log.sqlite"
CERTIFICATE = "certificate.sqlite"
ADDED_PLACE = f"{ANNOTATIONS}/{ADDED}"
"""Name of the folder of uploaded images in a catalogue, wherever the gallery lies."""


def annotations_folder(gallery: Path) -> Path:
    return gallery / ANNOTATIONS


def decisions_file(gallery: Path) -> Path:
    """Database of decisions; it may not exist yet."""
    return annotations_folder(gallery) / DECISIONS


def added_folder(gallery: Path) -> Path:
    """Folder of uploaded images, with symbolic links resolved; it may not exist yet."""
    return Path(os.path.realpath(annotations_folder(gallery) / ADDED))


def log_file(gallery: Path) -> Path:
    """Database of the log; it may not exist yet."""
    return annotations_folder(gallery) / LOG


def certificate_file(gallery: Path) -> Path:
    """Database of the sample of a certificate; it may not exist yet."""
    return annotations_folder(gallery) / CERTIFICATE


def incoming_folder(gallery: Path) -> Path:
    return annotations_folder(gallery) / INCOMING
