"""Which of Gradio's addresses are open: those that its page and its clients need, and none that fetches or shows more.

Gradio brings others too: it proxies addresses, takes logins, records, monitors. They answer 404.
"""

from __future__ import annotations

import re

GRADIO = "/gradio"
"""Where the Gradio app is."""
_API = f"{GRADIO}/gradio_api"
UPLOAD_PATH = f"{_API}/upload"
_READ = re.compile(
    rf"{GRADIO}(/(config|theme\.css|favicon\.ico|(assets|static|svelte)/[\w./@+~-]+)?)?"
    rf"|{_API}/(info|app_id|startup-events|theme\.css|queue/(data|status)|heartbeat/\w+|upload_progress"
    r"|call/\w+/\w+|file=[^\x00-\x1f]+)/?",
    re.ASCII,
)
_WRITTEN = re.compile(rf"{_API}/(upload|queue/join|call/\w+|run/\w+|cancel|reset)/?", re.ASCII)


def is_below(path: str) -> bool:
    """Whether an address is the Gradio app's, open or not."""
    return path == GRADIO or path.startswith(f"{GRADIO}/")


def is_open(path: str, method: str) -> bool:
    """Whether a request of that method may pass to the Gradio app."""
    if ".." in path:
        return False
    doors = {"GET": _READ, "HEAD": _READ, "POST": _WRITTEN}.get(method)
    return doors is not None and doors.fullmatch(path) is not None
