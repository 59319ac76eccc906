"""Where the token is sent that somebody typed into the page."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from retrieval_app.api.sign_in import FORM_PATH, SignIn

router = APIRouter(include_in_schema=False)


@router.post(FORM_PATH)
async def take_token(request: Request) -> Response:
    """A cookie for the right one; the form again for another."""
    sign_in: SignIn = request.app.state.sign_in
    return await sign_in.take_form(request.scope, await request.body())
