"""How large machines a collection needs: disk, memory, hours and machines from unit costs, by arithmetic alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.scale.costs import Cost

_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Wish:
    """A collection and how it is to be searched.

    Attributes:
        images: how many.
        file_bytes: of an image file, on average.
        widths: numbers of a vector, by output; the first is what searches ask.
        kind: of the ANN index, a name of `index.vectors.kinds.registry.KINDS`.
        model: whose rate embeds, a key of `UnitCosts.embedding`; it stands for a network and its precision.
        replicas: copies of the gallery that are served.
    """

    images: int
    file_bytes: float
    widths: tuple[int, ...]
    kind: str
    model: str
    replicas: int = 1

    def __post_init__(self) -> None:
        for name, least in (("images", 1), ("file_bytes", 0), ("replicas", 1)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"widths must be at least 1 each, got {self.widths}")


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores, and bytes of memory and disk of one machine; of the memory so much of 1 may be used."""

    cores: int
    memory_bytes: float
    disk_bytes: float
    used_share: float = 0.8


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """What was measured and fitted.

    Attributes:
        embedding: core seconds of a whole `index build` an image, by model.
        costs: seconds and bytes by name, see `benchmarks.scale.quantities`.
    """

    embedding: Mapping[str, float]
    costs: Mapping[str, Cost]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a wish comes to, disk and memory in bytes.

    Attributes:
        images_disk: the image files, which stay where they are.
        gallery_disk: one version.
        peak_disk: while it is made, checkpoints and the work in progress beside it.
        build_memory: of the process that publishes, its index included.
        serve_memory: of one serving process: its own, the index, and of a flat one the vectors, which every search
            reads and the system keeps.
        embed_core_hours: divided among all cores of all machines.
        write_hours: rows, vectors and index, on one machine.
        change_seconds: of a version that adds one image.
        search_seconds: of one search.
        serving_machines: for all replicas; None where a machine's memory does not hold one, which shards must mend.
    """

    images_disk: float
    gallery_disk: float
    peak_disk: float
    build_memory: float
    serve_memory: float
    embed_core_hours: float
    write_hours: float
    change_seconds: float
    search_seconds: float
    serving_machines: int | None


def find_needs(wish: Wish, units: UnitCosts, machine: Machine) -> Needs:
    """What a wish needs on machines of one kind.

    Raises:
        ValueError: the model's rate, or a cost of the kind, was not measured.
    """
    if wish.model not in units.embedding:
        raise ValueError(f"model must be one of {', '.join(units.embedding)}, got {wish.model!r}")

    def cost(name: str) -> float:
        if name not in units.costs:
            raise ValueError(f"{name} was not measured; there are {', '.join(units.costs)}")
        return units.costs[name].at(wish.images, wish.widths)

    is_flat = wish.kind == "flat"
    index = 0.0 if is_flat else cost(f"{wish.kind}: index bytes")
    vectors = cost("vector bytes")
    write_s = cost("scan s") + cost("settle s") + cost("publish s")
    if not is_flat:
        write_s += cost(f"{wish.kind}: build s") + cost(f"{wish.kind}: measure s")
    gallery = cost("catalogue bytes") + vectors + index
    serve = cost("serve memory") + (vectors if is_flat else index)
    holds = serve <= machine.used_share * machine.memory_bytes and gallery <= machine.disk_bytes
    return Needs(
        images_disk=wish.images * wish.file_bytes,
        gallery_disk=gallery,
        peak_disk=cost("rows while made bytes") + 2 * vectors + index,
        build_memory=max(cost("build memory"), 0.0 if is_flat else cost(f"{wish.kind}: build memory")),
        serve_memory=serve,
        embed_core_hours=wish.images * units.embedding[wish.model] / _HOUR,
        write_hours=write_s / _HOUR,
        change_seconds=cost("change s"),
        search_seconds=cost(f"{wish.kind}: search s"),
        serving_machines=wish.replicas if holds else None,
    )


def count_embedding_machines(needs: Needs, machine: Machine, *, hours: float) -> int:
    """Machines that embed within so many hours, each with a part of the images.

    Raises:
        ValueError: hours is not above 0.
    """
    if not hours > 0:
        raise ValueError(f"hours must be above 0, got {hours}")
    return max(1, math.ceil(needs.embed_core_hours / machine.cores / hours))


def count_shards(
    wish: Wish, units: UnitCosts, machine: Machine, *, most_change_s: float, most_search_s: float
) -> int:
    """The fewest galleries that a collection must be divided into, of the powers of two.

    Each must be served and built within a machine's memory and disk, be changed within `most_change_s`, and be
    searched within `most_search_s`.

    Raises:
        ValueError: a gallery of one image is too large for that.
    """
    shards = 1
    while True:
        part = Wish(
            math.ceil(wish.images / shards), wish.file_bytes, wish.widths, wish.kind, wish.model, wish.replicas
        )
        needs = find_needs(part, units, machine)
        if (
            needs.serving_machines is not None
            and needs.build_memory <= machine.used_share * machine.memory_bytes
            and needs.peak_disk <= machine.disk_bytes
            and needs.change_seconds <= most_change_s
            and needs.search_seconds <= most_search_s
        ):
            return shards
        if part.images == 1:
            raise ValueError("a gallery of one image exceeds what the machine or the limits allow")
        shards *= 2
