"""HTML documents of the page: a header and an empty place for every view, and the sign-in page."""

import json
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from retrieval_app.reports.standalone import draw_document, load_template

VIEWS = json.loads(files("retrieval_app.page").joinpath("views.json").read_text(encoding="utf-8"))
"""The views in their order: `name` in addresses, `title`, `icon`, `module` and `styles` below `static`.

The first is shown where an address names none. A module has `start(panel)`, as `static/nav.js` says.
"""
STYLES = ("core/base.css", "core/frame.css", *dict.fromkeys(style for view in VIEWS for style in view["styles"]))
router = APIRouter(include_in_schema=False)
_PROBLEMS = {
    "wrong token": "That is not the token.",
    "wrong code": "This address has been used, or is too old: it opens the page once. The token always does.",
    "token in address": "The token does not belong in the address, where others read it. Type it here.",
    "no page": "This token opens no page here.",
    "no gallery": "There is no such gallery here, or your token does not open it. Another token may.",
    "too many tries": "Too many wrong tokens came from your address. Wait a little, then try again.",
}


@router.api_route("/", methods=["GET", "HEAD"])
async def send_page(request: Request) -> HTMLResponse:
    """The page, whatever the address has behind its question mark: that is for the page's scripts."""
    who = name_signed_in(request)
    state = request.app.state
    page = HTMLResponse(draw_page(state.engine.name, who=who, is_one_of_several=state.is_one_of_several))
    if who is not None:
        page.headers["Cache-Control"] = "no-store"  # it names who is signed in
    return page


def name_signed_in(request: Request) -> str | None:
    """Who is signed in and can leave: empty without a name, None without a session."""
    visitor = getattr(request.state, "visitor", None)
    if visitor is None or not visitor.signed_in:
        return None
    return "" if " " in visitor.name else visitor.name  # one token for all has no name


def draw_page(name: str, *, who: str | None = None, is_one_of_several: bool = False) -> str:
    """The page of a gallery as HTML, with the name escaped, and a link to the other galleries of the server."""
    values = {"name": name, "who": who, "views": VIEWS, "styles": STYLES, "page": "page", "site": None}
    return load_template("page.html").render(**values, is_one_of_several=is_one_of_several)


def draw_sign_in(address: str, problem: str | None) -> str:
    """The sign-in page as HTML, without a script; its form is sent to `address`, and `problem` is a known one."""
    return "".join(
        draw_document(
            "sign_in.html",
            address=address,
            problem=None if problem is None else _PROBLEMS[problem],
            others=problem == "no gallery",
            invalid=problem in ("wrong token", "no page", "no gallery"),
        )
    )
