"""Security headers of every response: no type guessing, no frames, nothing to or from another host."""

from collections.abc import Iterable

PAGE_POLICY = (  # nothing may come from or go to another host
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'self'; form-action 'self';"
    " frame-ancestors 'self'"
)
DATA_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
SIGN_IN_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'"
)
COMMON_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
SECURITY_HEADERS = (*COMMON_HEADERS, (b"content-security-policy", DATA_POLICY.encode()))
"""Headers of a response that is not part of the page."""
PAGE_HEADERS = (*COMMON_HEADERS, (b"content-security-policy", PAGE_POLICY.encode()))
SIGN_IN_HEADERS = {
    "Content-Security-Policy": SIGN_IN_POLICY,
    "Referrer-Policy": "same-origin",  # without a referrer, browsers send forms with the origin `null`
    "Cache-Control": "no-store",
}


def list_headers(path: str, request_id: str) -> list[tuple[bytes, bytes]]:
    """The headers of every response of an address."""
    is_api = path.startswith("/v1")
    added = [*(SECURITY_HEADERS if is_api else PAGE_HEADERS), (b"x-request-id", request_id.encode())]
    return [*added, (b"cache-control", b"no-store")] if is_api else added


def add_missing(
    headers: Iterable[tuple[bytes, bytes]], added: Iterable[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    """The headers with the missing ones added."""
    kept = list(headers)
    known = {name.lower() for name, _ in kept}
    if b"content-encoding" in known:  # the same file, but no longer byte for byte
        kept = [(name, b"W/" + value.removeprefix(b"W/") if name.lower() == b"etag" else value) for name, value in kept]
    return [*kept, *(pair for pair in added if pair[0] not in known)]
