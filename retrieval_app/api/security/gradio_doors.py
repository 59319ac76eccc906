"""Which of Gradio's addresses are open: those that its page and its clients need.

Gradio brings others too: it proxies addresses (also as the name of a file), runs functions beside its queue, takes
logins, records, monitors. They answer 404.
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
    r"|call/(v2/)?\w+/\w+|file=/[^\x00-\x1f]+)/?",
    re.ASCII,
)
_WRITTEN = re.compile(rf"{_API}/(upload|queue/join|call/(v2/)?\w+|cancel|reset)/?", re.ASCII)


def is_below(path: str) -> bool:
    """Whether an address is the Gradio app's, open or not."""
    return path == GRADIO or path.startswith(f"{GRADIO}/")


def is_data(path: str) -> bool:
    """Whether an address answers with data, or a file that somebody sent, and is no page."""
    return path.startswith(f"{_API}/")


def is_open(path: str, method: str) -> bool:
    """Whether a request of that method may pass to the Gradio app."""
    if ".." in path:
        return False
    doors = {"GET": _READ, "HEAD": _READ, "POST": _WRITTEN}.get(method)
    return doors is not None and doors.fullmatch(path) is not None
