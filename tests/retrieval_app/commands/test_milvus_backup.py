"""What people made of a gallery in a real Milvus server outlives that server's collections."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from index.gallery.verify import verify_gallery
from index.labels.decisions import LabelDecision
from index.vectors.milvus.server import Server
from index.vectors.milvus.writer import name_start
from index.vectors.store_config import StoreConfig
from retrieval_app.commands.cli import main
from retrieval_app.review.review_store import ReviewStore
from tests.conftest import draw_folder
from tests.index.galleries import build
from tests.milvus_server import RunningMilvus
from tests.retrieval_app.review.test_moved_galleries import send, served, state_of

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("milvus_rights")]


def lose(gallery: Path, server: Server) -> None:
    """Let the server have nothing of a gallery."""
    for name in server.ask(lambda client: client.list_collections(), doing=""):
        if name.startswith(name_start(gallery)):
            server.ask(lambda client, name=name: client.drop_collection(name), doing="")


def test_it_is_restored_into_a_gallery_that_is_repaired_or_built_anew(
    tmp_path: Path, tiny_model: Path, milvus_server: RunningMilvus, capsys: pytest.CaptureFixture[str]
) -> None:
    store, gallery, out = StoreConfig("milvus", milvus_server.uri), tmp_path / "shop", tmp_path / "shop.zip"
    photos = draw_folder(tmp_path / "photos", per_class=2)
    build(photos, gallery, tiny_model, store=store)
    with served(gallery) as jobs:
        send(jobs, 1, "boot")
    sha256, _, label, path = state_of(gallery)[1]
    with_decision = ReviewStore.of_gallery(gallery)
    with_decision.decide([LabelDecision(str(sha256), label, "keep", None, 1, path)])
    with_decision.close()
    assert main(["backup", str(gallery), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "1 decisions on labels, 0 on duplicates, 1 images sent" in said
    assert f"not in it: the vectors, which are in Milvus at {milvus_server.uri}; without that server build" in said

    lose(gallery, Server(milvus_server.uri))
    assert main(["restore", str(out), "--gallery", str(gallery)]) == 1
    said = capsys.readouterr().err
    assert "the collection is missing; mend it with `retrieval index repair`" in said
    assert said.count("\n") == 1
    assert main(["index", "repair", str(gallery)]) == 0
    assert main(["restore", str(out), "--gallery", str(gallery)]) == 0
    assert "0 decisions restored, 1 were there" in capsys.readouterr().out

    shutil.rmtree(gallery)
    build(photos, gallery, tiny_model, store=store)
    assert main(["restore", str(out), "--gallery", str(gallery)]) == 0
    assert "1 decisions restored, 0 were there, 0 are older than those there; 1 images" in capsys.readouterr().out
    assert len(state_of(gallery)) == 7
    assert verify_gallery(gallery, seed=0).problems == []
