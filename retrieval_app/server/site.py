"""Several galleries on one server: a request goes to the gallery whose name is in its address, below `/g/`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from retrieval_app.api.security.front_door import redirect_to_slash
from retrieval_app.api.security.root_path import strip_root_path
from retrieval_app.server.doors import place_gallery

_GALLERY = re.compile(r"/g/([^/]+)(/.*)?", re.DOTALL)


class Site:
    """Passes requests on; what stands before each application is the application's own.

    Args:
        galleries: by their names.
        hall: what answers beside them, and begins and ends with the server.
        nothing: what answers where there is no gallery of a name.
        root_path: below which the server lives; a proxy may have taken it away.
    """

    def __init__(
        self, galleries: Mapping[str, ASGIApp], *, hall: ASGIApp, nothing: ASGIApp, root_path: str = ""
    ) -> None:
        self._galleries, self._hall, self._nothing, self._root_path = galleries, hall, nothing, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        app = self._hall if scope["type"] != "http" else self._choose(scope)
        await app(scope, receive, send)

    def _choose(self, scope: Scope) -> ASGIApp:
        """What answers a request, whose path becomes one that it knows."""
        within = strip_root_path(scope["path"], self._root_path)
        found = _GALLERY.fullmatch(scope["path"] if within is None else within)
        if found is None:
            return self._hall
        name, rest = found[1], found[2]
        below = place_gallery(self._root_path, name)
        if rest is None:
            return redirect_to_slash(scope, below)
        if name not in self._galleries:
            scope["path"] = self._root_path + rest
            return self._nothing
        scope["path"] = below + rest
        return self._galleries[name]
