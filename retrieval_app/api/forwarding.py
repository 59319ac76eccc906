"""What a request says of the way that it came, which anybody may write and nothing behind here is to believe.

Gradio would build the addresses of its page of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_FORWARDING = re.compile(rb"x-forwarded.*|forwarded|x-gradio-server", re.DOTALL)


def drop_forwarding(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers, whose names are in lower case, without those that tell of hosts before this one."""
    return [pair for pair in headers if not _FORWARDING.fullmatch(pair[0])]
