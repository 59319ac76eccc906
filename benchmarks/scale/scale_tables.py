"""What `benchmarks.scale` measured, as Markdown: predictions held against it, larger sizes, and what breaks first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.common.record import format_versions
from benchmarks.common.tables import format_table
from benchmarks.scale.catalogue_tables import format_catalogue
from benchmarks.scale.costs import APPROXIMATE, Cost, fit_cost
from benchmarks.scale.measuring import BOX, PLAIN
from benchmarks.scale.quantities import GOOD_WITHIN, QUANTITIES, Document, check_all, fit_all
from benchmarks.scale.show import show, show_images
from benchmarks.scale.sizing import Machine, UnitCosts, Wish, count_embedding_machines, count_shards, find_needs

ANY_MACHINE = Machine(cores=16, memory_bytes=128 * 2**30, disk_bytes=4e12)
LARGE = (10**6, 10**7, 10**8, 10**9)
WIDTHS = (((128, 64), BOX), ((512,), PLAIN), ((1280,), PLAIN))
_DAY = 24.0
_MOST_CHANGE_S, _MOST_SEARCH_S = 60.0, 1.0
_GIB = 2**30
_LIMITS = (
    ("a search of a flat index takes more than 0.1 s", "flat: search s", 0.1),
    ("a search of a flat index takes more than 1 s", "flat: search s", 1.0),
    ("the vectors, all of which a flat search reads, are more than 16 GiB", "vector bytes", 16 * _GIB),
    ("facets take more than the 10 s that a server gives them", "facets s", 10.0),
    ("a search with a filter by metadata takes more than the same 10 s", "filter by metadata s", 10.0),
    ("a new version with one image more takes a minute", "change s", 60.0),
    ("a new version with one image more takes an hour", "change s", 3600.0),
    ("a backup of what people made takes an hour", "backup s", 3600.0),
    ("opening, which reads all but the ANN index, takes a minute", "open s", 60.0),
    ("the catalogue is larger than 100 GB", "catalogue bytes", 1e11),
    ("making a version takes 1 TB of disk beside the vectors", "rows while made bytes", 1e12),
    ("the process that adds an image takes more than 16 GiB", "change memory", 16 * _GIB),
    ("the process that makes a gallery takes more than 16 GiB", "build memory", 16 * _GIB),
    ("a server takes more than 16 GiB beside vectors and index", "serve memory", 16 * _GIB),
    ("an ivf index is larger than 16 GiB", "ivf: index bytes", 16 * _GIB),
    ("an ivf index takes a day to build", "ivf: build s", 86_400.0),
    ("an hnsw index takes a day to build", "hnsw: build s", 86_400.0),
)


def format_all(record: Mapping[str, Any]) -> str:
    """Markdown of a whole record; parts that were not measured are left out."""
    results, machine = record["results"], record["machine"]
    line = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB; Python {machine['python']}"
    texts = [f"{line}, {format_versions(machine['versions'])}; seed {record['settings']['seed']}"]
    if "embedding" in results:
        texts.append(format_embedding(results["embedding"]))
    if "galleries" in results:
        widths, fitted = results["galleries"]["widths"], results["galleries"]["fit"]
        galleries = by_images(results["galleries"]["galleries"])
        texts += [format_costs(fit_all(galleries, widths, small=fitted)), format_checks(galleries, widths, fitted)]
        everything = fit_all(galleries, widths, small=list(galleries))
        texts.append(format_breaking(everything, widths))
        if "embedding" in results:
            texts.append(format_larger(UnitCosts(find_rates(results["embedding"]), everything)))
    if "catalogue" in results:
        texts.append(format_catalogue(by_images(results["catalogue"])))
    return "\n\n".join(texts)


def by_images(named: Mapping[str, Any]) -> dict[int, Any]:
    """The same by number, in rising order: JSON has names."""
    return {int(name): named[name] for name in sorted(named, key=int)}


def find_rates(embedding: Mapping[str, Any]) -> dict[str, float]:
    """Core seconds an image by model, from all of what was measured."""
    return {
        model: embedding["cores"] * fit_cost(by_images(seconds), (1,)).each
        for model, seconds in embedding["seconds"].items()
    }


def format_embedding(embedding: Mapping[str, Any]) -> str:
    """Seconds of whole commands by photos, and what those of fewer photos say of all of them."""
    rows = []
    for model, named in embedding["seconds"].items():
        seconds = by_images(named)
        most = max(seconds)
        cost = fit_cost({images: seconds[images] for images in seconds if images != most}, (1,))
        predicted = cost.at(most, (1,))
        each = 1000 * embedding["cores"] * cost.each
        measured = ", ".join(f"{images:,}: {show(value, 's')}" for images, value in seconds.items())
        rows.append((model, measured, f"{each:.2f}", show(predicted, "s"), f"{predicted / seconds[most]:.2f}"))
    head = ["`index build`", "photos: measured", "core ms an image", "all, predicted", "predicted / measured"]
    return f"{format_table(head, rows)}\n\nMean size of a file: {embedding['file_bytes'] / 1000:.0f} kB."


def format_costs(costs: Mapping[str, Cost]) -> str:
    """The unit costs."""
    rows = [
        (name, show(cost.fixed, unit_of(name)), f"{cost.each:.3g} {unit_of(name)}", cost.growth)
        for name, cost in costs.items()
    ]
    return format_table(["fitted to the small sizes", "fixed", "each", "of"], rows)


def format_checks(
    galleries: Mapping[int, Sequence[Document]], widths: Sequence[int], fitted: Sequence[int]
) -> str:
    """Predictions beside what was measured, and how many are good at sizes that nothing was fitted to."""
    checks = list(check_all(galleries, fit_all(galleries, widths, small=fitted), widths))
    sizes = sorted({check.images for check in checks})
    rows = []
    for name in QUANTITIES:
        cells = {check.images: check for check in checks if check.quantity == name}
        if cells:
            rows.append((name, *(_show_check(cells.get(size)) for size in sizes)))
    new = [check for check in checks if check.images not in fitted]
    good = sum(check.is_good for check in new)
    largest = [check for check in new if check.images == max(sizes)]
    note = (
        f"Predicted / measured; bold is off by more than {GOOD_WITHIN:.0%}. At sizes that nothing was fitted to "
        f"{good} of {len(new)} are within it, at the largest {sum(check.is_good for check in largest)} of "
        f"{len(largest)}."
    )
    return f"{format_table(['', *map(show_images, sizes)], rows)}\n\n{note}"


def _show_check(check: Any) -> str:
    if check is None:
        return ""
    unit = unit_of(check.quantity)
    ratio = f"{check.ratio:.2f}" if check.is_good else f"**{check.ratio:.2f}**"
    return f"{show(check.predicted, unit)} / {show(check.measured, unit)} = {ratio}"


def unit_of(name: str) -> str:
    """Of a quantity, by its name."""
    return "s" if name.endswith(" s") else "B"


def format_breaking(costs: Mapping[str, Cost], widths: Sequence[int]) -> str:
    """At how many images a limit is passed, the first one first."""
    found = [
        (costs[quantity].reach(limit, widths), text) for text, quantity, limit in _LIMITS if quantity in costs
    ]
    passed = sorted((images, text) for images, text in found if images is not None)
    rows = [(text, show_images(images)) for images, text in passed]
    return format_table(["what breaks, one machine as this one, 128-d and 64-d", "above so many images"], rows)


def format_larger(units: UnitCosts) -> str:
    """Disk, memory, hours and machines of larger collections, as one gallery and in shards."""
    rows = [row for widths, model in WIDTHS for images in LARGE for row in _rows_of(images, widths, model, units)]
    machine = ANY_MACHINE
    head = [
        "images", "vectors", "index", "disk of a version", "while made", "memory to build", "to serve",
        f"embedding, hours of {machine.cores} cores", "machines for a day of it", "writing, h", "one image more",
        "galleries",
    ]  # fmt: skip
    note = (
        f"Galleries: so many that each fits into {machine.memory_bytes / 2**30:.0f} GiB and "
        f"{machine.disk_bytes / 1e12:.0f} TB, takes one image more within {_MOST_CHANGE_S:.0f} s and is searched "
        f"within {_MOST_SEARCH_S:.0f} s. Each replica is served by as many machines again."
    )
    return f"{format_table(head, rows)}\n\n{note}"


def _rows_of(images: int, widths: tuple[int, ...], model: str, units: UnitCosts) -> Iterator[Sequence[str]]:
    for kind in ("flat", *(kind for kind in APPROXIMATE if f"{kind}: build s" in units.costs and kind != "hnsw")):
        wish = Wish(images, 0, widths, kind, model)
        needs = find_needs(wish, units, ANY_MACHINE)
        shards = count_shards(wish, units, ANY_MACHINE, most_change_s=_MOST_CHANGE_S, most_search_s=_MOST_SEARCH_S)
        yield (
            show_images(images), " + ".join(f"{width}-d" for width in widths), kind, show(needs.gallery_disk, "B"),
            show(needs.peak_disk, "B"), show(needs.build_memory, "B"), show(needs.serve_memory, "B"),
            f"{needs.embed_core_hours / ANY_MACHINE.cores:,.1f}",
            str(count_embedding_machines(needs, ANY_MACHINE, hours=_DAY)), f"{needs.write_hours:,.1f}",
            show(needs.change_seconds, "s"), str(shards),
        )  # fmt: skip
