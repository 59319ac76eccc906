"""Where the vectors of a damaged gallery lie, and from now on shall lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from index.catalog.writer import CatalogWriter
from index.errors import InputError
from index.gallery.salvage import SalvagedVersion
from index.vectors.store_config import MILVUS, STORE_SETTING, StoreConfig


def find_store(versions: Sequence[SalvagedVersion], *, uri: str | None) -> StoreConfig | None:
    """What a version that is left tells, the newest first; None where none does.

    Args:
        uri: where the server answers now; None: where it did.

    Raises:
        InputError: the gallery has no server, or `uri` is no address of one.
    """
    found = next((store for version in versions if (store := _read_store(version)) is not None), None)
    if uri is None:
        return found
    if found is None or found.store != MILVUS:
        raise InputError(f"--uri {uri}: nothing tells that this gallery's vectors are in Milvus; leave it out")
    return replace(found, uri=uri)


def _read_store(version: SalvagedVersion) -> StoreConfig | None:
    if version.manifest is not None:
        store = version.manifest.store
        return StoreConfig() if store is None else StoreConfig(store["type"], store["uri"])
    settings = version.remembered.get("settings")
    return StoreConfig.from_text(settings.get(STORE_SETTING)) if isinstance(settings, dict) else None


def keep_store(catalog: CatalogWriter, store: StoreConfig | None) -> None:
    """Let a catalogue say it, whatever is left of its settings."""
    if store is not None:
        catalog.set({STORE_SETTING: None if store == StoreConfig() else store.to_text()})


def describe_move(versions: Sequence[SalvagedVersion], store: StoreConfig | None) -> str | None:
    """That a server answers at another address now than the newest version says; None where it does not."""
    before = next((version.manifest for version in versions if version.manifest is not None), None)
    if store is None or before is None or store.describe() == before.store or before.store is None:
        return None
    return f"its vectors are in Milvus at {store.uri} now, no longer at {before.store['uri']}"
