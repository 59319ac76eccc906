"""Gallery queries with plain values as answers: for the Gradio app and for agents."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from index.errors import InputError
from index.filters.condition import LABEL, Compare, Constant
from index.filters.parser import write_condition
from index.gallery.gallery import Gallery
from index.words.words import MAX_QUERY
from retrieval_app.api.gallery_routes import describe_gallery
from retrieval_app.api.request_context import read_condition
from retrieval_app.api.search_routes import describe_search
from retrieval_app.insights.background import Computed
from retrieval_app.insights.label_issues import without_dropped_copies
from retrieval_app.review.places import describe_row
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.photos import Upload
from retrieval_app.serving.search_engine import Engine
from retrieval_app.serving.searching import MemberQuery, Part, SearchQuery, TextQuery

Value = TypeVar("Value")
_INCLUDE = ["label", "path", "precision_at_score"]
_ASKED_AGAIN_S = 0.2
_PHOTO = "the photo"
_MOST_LISTED = 200
_FACTS = ("name", "version", "images", "labels", "metadata_columns", "similarity", "model")


class GalleryAnswers:
    """Queries to an engine, each of the newest version of its gallery; the owner of the engine closes it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that can be searched: `semantic`, and `copy` where the gallery has such vectors."""
        return tuple(self.engine.snapshot().gallery.manifest.similarity)

    async def _follow(self) -> Snapshot:
        """The current version with the newest label decisions."""
        await self.engine.follow_decisions()
        return self.engine.snapshot()

    async def list_facts(self) -> dict[str, Any]:
        """Facts of the gallery: images, labels, columns for conditions, model, outputs."""
        facts = await self.engine.run(
            describe_gallery,
            await self._follow(),
            name=self.engine.name,
            folders=False,
            permissions={"review": False, "write": False},
            config=self.engine.config,
        )
        return {name: facts[name] for name in _FACTS}

    async def list_matching(self, *, where: str, text: str, limit: int) -> dict[str, Any]:
        """The number of images that fulfil a condition and contain words, and the first of them: id, label, name."""
        condition = read_condition(where or None, text or None, folders=False)
        gallery = (await self._follow()).gallery
        ids = gallery.ids if condition is None else await self.engine.look_up(gallery.matching_ids, condition)
        listed = await self._describe(gallery, ids[: _bound(limit)].tolist())
        return {"total": len(ids), "images": listed}

    def describe(self) -> str:
        """A line about the gallery and its model."""
        gallery = self.engine.snapshot().gallery
        with gallery.catalog() as catalog:
            labels = catalog.indexed_labels(limit=1)
        contract = gallery.embedder.contract
        return f"{gallery.count:,} images · {labels['count']:,} labels · {contract.backbone}, {contract.method}"

    def example_filter(self) -> str:
        """A condition that some images of the gallery fulfil."""
        with self.engine.snapshot().gallery.catalog() as catalog:
            largest = catalog.indexed_labels(limit=1)["largest"]
        if not largest:
            return "path LIKE '%a%'"
        return write_condition(Compare(LABEL, "!=", Constant("text", next(iter(largest)))))

    async def search(
        self, photo: bytes | None, image_id: int | None, *, k: int, where: str, by: str, text: str = ""
    ) -> list[dict[str, Any]]:
        """The k images most similar to a photo, by the bytes of its file, to an image of the gallery, or to words."""
        if [photo is not None, image_id is not None, bool(text.strip())].count(True) != 1:
            raise InputError("a search needs a photo, the id of an image of the gallery, or words: one of them")
        snapshot = await self._follow()
        kept = read_condition(where or None, None, folders=False)
        parts: list[Part] = [] if image_id is None else [MemberQuery(image_id=image_id)]
        if text.strip():
            if len(text) > MAX_QUERY:
                raise InputError(f"a search by words may have {MAX_QUERY:,} characters, got {len(text):,}")
            parts.append(TextQuery(text=text))
        upload = None if photo is None else Upload(photo, _PHOTO)
        query = SearchQuery(parts, upload, k=k, where=kept, by=by)
        found = await describe_search(self.engine, snapshot, query, include=_INCLUDE, folders=False)
        for hit in found["hits"]:
            if (precision := hit["precision_at_score"]) is not None:
                hit["precision_at_score"] = precision.model_dump()
        return [_name_file(hit) for hit in found["hits"]]

    async def list_some(self, count: int) -> list[dict[str, Any]]:
        """Different images of the gallery at random: id, label, name."""
        gallery = (await self._follow()).gallery
        chosen = np.random.default_rng().choice(gallery.count, size=min(count, gallery.count), replace=False)
        return await self._describe(gallery, gallery.ids[chosen].tolist())

    async def thumbnail(self, image_id: int, *, side: int) -> bytes:
        return await self.engine.thumbnail(self.engine.snapshot(), image_id, side=side)

    async def evaluate(self) -> dict[str, Any]:
        """Recall@K, with 95 % intervals, and the labels that are found worst."""
        snapshot = await self._follow()
        found = await self._wait(lambda: snapshot.insights.quality)
        if found.problem is not None:
            raise InputError(found.problem)
        document: dict[str, Any] = found.model_dump()
        return {name: document[name] for name in ("queries", "recall_at", "map_at_r", "grouped", "classes")}

    async def list_label_issues(self, count: int) -> dict[str, Any]:
        """Label issues, the most probable errors first, and the estimated noise rate."""
        snapshot = await self._follow()
        found = await self._wait(lambda: snapshot.insights.label_issues)
        issues = without_dropped_copies(found, snapshot.gallery)
        items = issues.errors[: _bound(count)]
        rows = await self._describe(snapshot.gallery.without_decisions, [issue.id for issue in items])
        listed = [
            {**row, "p_error": round(issue.p_error, 4), "suggested": issue.suggested}
            for row, issue in zip(rows, items, strict=True)
        ]
        told = {"checked": issues.checked, "noise_rate": issues.noise_rate, "is_lower_bound": issues.is_lower_bound}
        return {**told, "items": listed}

    async def _wait(self, read: Callable[[], Computed[Value]]) -> Value:
        """Waits for a background result of the engine and returns it."""
        while (computed := read()).state == "computing":
            await asyncio.sleep(_ASKED_AGAIN_S)
        if computed.value is None:
            raise InputError(computed.message or "there are too few labels to compute this from")
        return computed.value

    async def _describe(self, gallery: Gallery, ids: list[int]) -> list[dict[str, Any]]:
        def read() -> list[dict[str, Any]]:
            rows = gallery.rows(ids)
            return [{"id": row.id, **describe_row(gallery, row, include=_INCLUDE, folders=False)} for row in rows]

        return [_name_file(entry) for entry in await self.engine.run(read)]


def _bound(count: int | None) -> int:
    """The number of items to list of a wanted number."""
    return _MOST_LISTED if count is None else max(0, min(count, _MOST_LISTED))


def _name_file(entry: dict[str, Any]) -> dict[str, Any]:
    """Gradio takes what is called `path` for a file of its own."""
    entry["name"] = entry.pop("path")
    return entry
