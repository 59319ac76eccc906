"""Certificate routes: a random sample of labels to look at, and what the answers prove."""

from collections.abc import Mapping
from typing import Any

from fastapi import Response
from pydantic import Field

from index.errors import InputError
from index.labels.decisions import LabelDecision, LabelKey
from retrieval_app.api.errors import BODY_ERRORS, ApiError
from retrieval_app.api.issue_list import current_issues
from retrieval_app.api.request_context import Context, RequestContext, make_router, responses
from retrieval_app.api.review_routes import CSV, MAY_DECIDE
from retrieval_app.api.schemas import Answer, Body
from retrieval_app.reports.certificate_page import describe, draw_certificate
from retrieval_app.review.certificates import Certificate, CertificateStore, list_members, read_certificate
from retrieval_app.review.database import DecidedSinceError

router = make_router("review")
_PAGE: dict[int, dict[str, Any]] = {
    200: {"content": {"text/html": CSV[200]["content"]["text/csv"]}, "description": "a page that needs no network"}
}


class SampleRequest(Body):
    """Goal of a sample; the last sample continues unless `new`."""

    at_most: float = Field(default=0.02, gt=0, le=0.5, description="share of wrong labels")
    confidence: float = Field(default=0.95, ge=0.5, lt=1)
    new: bool = Field(default=False, description="begin another sample; each one left unproved makes it stricter")


class SecondPerson(Answer):
    """Answers of a second person to the same questions, and the estimated error rates of the first and the second."""

    by: str | None
    answers: int
    wrong: float = Field(description="estimated wrong labels among these")
    agreement: float
    false_negative_rates: tuple[float, float] = Field(description="shares of the wrong labels that they called right")
    false_positive_rates: tuple[float, float] = Field(description="shares of the right labels that they called wrong")


class CertificateState(Answer):
    """State of a sample of labels, and what it proves now; `number` is 0 before the first sample."""

    number: int
    started_at: str
    started_by: str | None
    last_look: str | None
    at_most: float = Field(description="share of wrong labels that it is to prove")
    confidence: float
    alpha: float = Field(description="chance of a false certificate that this sample may take")
    labels: int = Field(description="number of labels, without those of images that its answers leave out")
    decided_before: int = Field(description="number of labels that people had decided before")
    looked_at: int
    found_wrong: int
    most_wrong: int = Field(description="upper bound of the wrong labels that are left, at that confidence")
    bound: float = Field(description="the same as a share of the labels")
    is_proved: bool
    changes: list[str] = Field(description="why it is out of date; empty where it is not")
    waiting: int = Field(description="images that wait for an answer: `GET /v1/labels/issues?state=sample`")
    looks_to_come: int = Field(description="about how many more looks it takes")
    people: dict[str, int] = Field(description="number of answers by who gave them, for visitors who may decide")
    second: SecondPerson | None = Field(description="what a second person's answers say of both; null before these")
    verdict: str = Field(description="the same in a sentence")


def _read(context: RequestContext) -> Certificate | None:
    return read_certificate(context.snapshot.gallery, context.review.label_decisions())


def _describe(context: RequestContext, found: Certificate | None) -> dict[str, Any]:
    if found is None:
        empty: dict[str, Any] = dict.fromkeys(CertificateState.model_fields, 0)
        empty |= {"started_at": "", "started_by": None, "last_look": None, "is_proved": False, "changes": []}
        return empty | {"people": {}, "second": None, "verdict": "No sample has begun."}
    document = found.to_json() | {"verdict": describe(found)}
    return document if context.folders else document | {"people": {}, "started_by": None, "second": None}


@router.get("/labels/certificate", **responses(CertificateState))
async def get_certificate(context: Context) -> Any:
    """Tell what the sample of labels proves now."""
    return await context.read(lambda: _describe(context, _read(context)))


@router.post("/labels/certificate", **{**MAY_DECIDE, **responses(CertificateState, 409, *BODY_ERRORS)})
async def draw_sample(context: Context, body: SampleRequest) -> Any:
    """Begin a sample of labels, or draw the next images of the last one, unless some wait for an answer.

    A label of the sample is answered by a decision about it. 409 where the sample is out of date, or another was begun
    meanwhile. `at_most` and `confidence` are those of a new sample; the last one keeps its own.
    """

    def draw() -> dict[str, Any]:
        gallery = context.snapshot.gallery
        store = CertificateStore.of_gallery(gallery.path)
        try:
            decisions: Mapping[LabelKey, LabelDecision] = context.review.label_decisions()
            found = None if body.new else store.read(gallery, decisions)
            if found is None:
                members = list_members(gallery, decisions, current_issues(context.snapshot, decisions))
                goal = {"at_most": body.at_most, "confidence": body.confidence}
                store.start(gallery, members, **goal, by=context.visitor.name)
                context.log("begin-sample", **goal)
                found = store.read(gallery, decisions)
                assert found is not None
            if not found.is_proved:
                store.draw(found)
            found = store.read(gallery, context.review.label_decisions())
            if found is not None and found.is_proved:
                store.note_proved(found.number)
            return _describe(context, found)
        except (DecidedSinceError, InputError) as error:
            raise ApiError(str(error), status=409) from error
        finally:
            store.close()

    return await context.read(draw)


@router.get("/labels/certificate/page", **responses(None, 404, also=_PAGE))
async def get_certificate_page(context: Context) -> Response:
    """Download the certificate as a page that needs no network."""

    def draw() -> str:
        found = _read(context)
        if found is None:
            raise ApiError("no sample has begun", status=404)
        return draw_certificate(found, gallery=context.snapshot.gallery.name, names=context.folders)

    html = await context.engine.run(draw)
    return Response(
        html, media_type="text/html", headers={"Content-Disposition": 'attachment; filename="certificate.html"'}
    )
