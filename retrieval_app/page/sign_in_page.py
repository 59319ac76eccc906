"""Sign-in page: one field, no script, and not a word of what is served."""

from __future__ import annotations

from retrieval_app.reports.standalone import draw_document

_PROBLEMS = {
    "wrong token": "That is not the token.",
    "wrong code": "This address has been used, or is too old: it opens the page once. The token always does.",
    "token in address": "The token does not belong in the address, where others read it. Type it here.",
    "no page": "This token opens no page here.",
    "no gallery": "There is no such gallery here, or your token does not open it. Another token may.",
    "too many tries": "Too many wrong tokens came from your address. Wait a little, then try again.",
}


def draw_sign_in(address: str, problem: str | None) -> str:
    """The page as HTML; its form is sent to `address`, and `problem` is one of the known ones."""
    return "".join(
        draw_document(
            "sign_in.html",
            address=address,
            problem=None if problem is None else _PROBLEMS[problem],
            others=problem == "no gallery",
            invalid=problem in ("wrong token", "no page", "no gallery"),
        )
    )
