"""The headers that every answer carries: nothing may be guessed, framed, sent to or fetched from another host."""

from __future__ import annotations

PAGE_POLICY = (  # Gradio's templates need eval; nothing may come from or go to another host
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data: blob:; font-src 'self' data:; object-src 'none'; base-uri 'self'; form-action 'self';"
    " frame-ancestors 'self'"
)
DATA_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
COMMON_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
SECURITY_HEADERS = (*COMMON_HEADERS, (b"content-security-policy", DATA_POLICY.encode()))
"""Those of an answer that is no part of the page."""
PAGE_HEADERS = (*COMMON_HEADERS, (b"content-security-policy", PAGE_POLICY.encode()))
