"""Whether a page of another site caused a request, by the headers that browsers send of it.

Programs tell nothing of sites, and are not meant. Neither do browsers always: they leave `Sec-Fetch-Site` out where the
server is reached over plain HTTP by another name than the machine's own, `Origin` where a picture is embedded, and
`Referer` where the other page wishes so. What is left then are the cookie, which is not sent for such a picture, and
`Cross-Origin-Resource-Policy`, which keeps it from being shown.
"""

from __future__ import annotations

from starlette.datastructures import Headers


def comes_from_another_site(headers: Headers, *, by_tls: bool = False) -> bool:
    """Whether a browser says so; where it speaks TLS with this server, a page that came without is another site's."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin", headers.get("referer"))
    if origin is None:
        return False
    is_less_safe = by_tls and origin.lower().startswith("http:")
    return is_less_safe or _read_authority(origin) != headers.get("host", "").lower()


def _read_authority(address: str) -> str:
    return address.partition("://")[2].partition("/")[0].lower()
