"""Certificate of labels as a page that needs no network, and in words."""

import json
from math import ceil
from pathlib import Path
from typing import Any

from index.durable import replacing
from index.errors import InputError
from retrieval_app.reports.standalone import draw_document, write_document
from retrieval_app.review.certificates import Certificate

_OVERLOOKED = 0.05  # share of wrong labels that people overlook, where no second person says more
_ENOUGH = 20  # wrong labels that both saw, from which on they do


def write_certificate(certificate: Certificate, out: Path, *, gallery: str) -> list[Path]:
    """Write FILE.html, and FILE.json beside it with the same figures; the files."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError("a certificate is a page; give a name like certificate.html", at=out)
    table, document = out.with_suffix(".json"), _describe_all(certificate, gallery)
    write_document(out, "certificate.html", **_fill(certificate, document))
    try:
        with replacing(table) as temporary:
            temporary.write_text(json.dumps(document, indent=2), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}; choose another file", at=table) from error
    return [out, table]


def draw_certificate(certificate: Certificate, *, gallery: str, names: bool) -> str:
    """The page as text; `names`: whether it says who looked."""
    document = _describe_all(certificate, gallery)
    hidden: dict[str, Any] = {} if names else {"people": {}, "started_by": None, "second": None}
    return "".join(draw_document("certificate.html", **_fill(certificate, document | hidden)))


def _describe_all(certificate: Certificate, gallery: str) -> dict[str, Any]:
    return {"gallery": gallery, **certificate.to_json(), "by_label": certificate.list_labels()}


def _fill(certificate: Certificate, document: dict[str, Any]) -> dict[str, Any]:
    """The values of the page's template."""
    found, both = certificate.sample.found, certificate.reviewers
    is_known = both is not None and both.wrong >= _ENOUGH
    overlooked = both.false_negative_rates[0] if both is not None and is_known else _OVERLOOKED
    missed = (certificate.most_wrong + found * overlooked) / (1 - overlooked)
    more = {"overlooked": overlooked, "is_known": is_known, "missed": missed}
    return {"one": document, "verdict": describe(certificate), **more}


def describe(certificate: Certificate) -> str:
    """The verdict in a sentence."""
    claim = f"at most {format_share(certificate.at_most)} of the labels are wrong"
    sure = f"({format_share(certificate.confidence)} confidence)"
    if certificate.changes:
        return f"Out of date: {'; '.join(certificate.changes)}. Begin a new sample."
    if certificate.is_proved:
        return f"Proved: {claim} {sure}."
    bound = f"at most {format_bound(certificate.bound)} {sure}"
    return f"Not proved yet that {claim}: {bound} so far; about {certificate.looks_to_come:,} more looks."


def format_share(share: float) -> str:
    """A share in %, as it was given."""
    return f"{100 * share:.6g}%"


def format_bound(share: float) -> str:
    """A share in %, rounded up to two digits after the point."""
    return f"{ceil(1e4 * share - 1e-6) / 100:.2f}%"
