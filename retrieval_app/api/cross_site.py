"""Whether a request was caused by a page of another site, as browsers tell."""

from __future__ import annotations

from starlette.datastructures import Headers


def comes_from_another_site(headers: Headers) -> bool:
    """Whether a browser says so; programs, which say nothing of sites, are not meant."""
    site = headers.get("sec-fetch-site")  # browsers leave it out where the page came over plain HTTP
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host")
