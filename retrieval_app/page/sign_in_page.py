"""The page for those who come without the token: one field, no script, and not a word of what is served."""

from __future__ import annotations

import re
from functools import cache
from html import escape
from urllib.parse import quote

from retrieval_app.page.static_files import read_files

_PROBLEMS = {
    "wrong token": "That is not the token.",
    "wrong code": "This address has been used, or is too old: it opens the page once. The token always does.",
    "token in address": "The token does not belong in the address, where others read it. Type it here.",
    "too many tries": "Too many wrong tokens came from your address. Wait a little, then try again.",
}
_DARK = re.compile(r"^\.dark (\{.*?\})", re.DOTALL | re.MULTILINE)


def draw_sign_in(address: str, problem: str | None) -> str:
    """The page as HTML; its form is sent to `address`, and `problem` is one of the known ones."""
    shown = None if problem is None else _PROBLEMS[problem]
    told = "" if shown is None else f'<p class="problem" id="problem" role="alert">{escape(shown)}</p>'
    marked = ' aria-invalid="true"' if problem == "wrong token" else ""
    described = "hint" if shown is None else "problem hint"
    title = "Sign in" if shown is None else "Error: sign in"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="robots" content="noindex">'
        '<meta name="color-scheme" content="light dark">'
        f'<title>{title} · image search</title><link rel="icon" href="{_icon()}"><style>{_style()}</style></head>'
        '<body><main class="app sign-in"><h1>Image search</h1>'
        f'{told}<form method="post" action="{escape(address)}">'
        '<input name="username" value="image search" autocomplete="username" hidden>'  # as password managers ask
        '<div class="field">'
        '<label for="token">Token</label><input class="input" id="token" name="token" type="password" required '
        f'autofocus autocomplete="current-password" spellcheck="false" aria-describedby="{described}"{marked}></div>'
        '<p class="soft small" id="hint">Whoever started the server has it.</p>'
        '<button class="button primary" type="submit">Open the gallery</button></form></main></body></html>'
    )


@cache
def _style() -> str:
    """The page's own looks: dark where the system is, as no script tells."""
    style = _read("base.css")
    dark = _DARK.search(style)
    assert dark is not None, "base.css has colours for the dark"
    return f"{style}@media (prefers-color-scheme: dark) {{ :root {dark[1]} }}\n{_read('sign_in.css')}"


@cache
def _icon() -> str:
    return f"data:image/svg+xml,{quote(_read('icon.svg'))}"


def _read(name: str) -> str:
    return read_files()[name][0].decode()
