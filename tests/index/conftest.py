"""The Milvus server that tests marked `cluster` talk to."""

from __future__ import annotations

from tests.milvus_server import milvus_rights, milvus_server

__all__ = ["milvus_rights", "milvus_server"]
