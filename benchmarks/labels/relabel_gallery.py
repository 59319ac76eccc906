"""Does it help who searches a gallery to apply the verdicts to its labels? Without training anything again.

Four fifths of the images are the gallery, whose labels get mistakes; the others are queries. Right, in %: how often the
nearest image of the gallery has the label that the query shows; by labels as given, after the verdicts of the audit
(change and drop), and had all been right. Raw features.

    python -m benchmarks.labels.relabel_gallery --out bench/labels
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.common.record import ending_in_words, print_machine, write_record
from benchmarks.common.tables import format_deviation, format_table
from benchmarks.labels.known_labels import DATASETS, KnownLabels, load_known_labels, mistake
from benchmarks.noise.reports import over_seeds
from index.arrays import normalise_rows
from index.labels.decisions import CHANGE, DROP
from index.labels.kinds import give_verdicts, has_rare_class
from index.labels.label_errors import find_label_errors

KINDS, SEEDS, QUERIES = ("right", "any:0.2", "alike:0.2"), (0, 1, 2), 0.2
WAYS = ("given", "cleaned", "right")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for features, records and tables")
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS), help=f"default: {' '.join(DATASETS)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="of mistakes and queries")
    options = parser.parse_args(arguments)
    with ending_in_words("relabel_gallery"):
        print_machine(options.seeds)
        rows = []
        for dataset in options.dataset:
            known = load_known_labels(dataset, "report", options.out / "known", workers=2)
            for kind in KINDS:
                found = [search_relabelled(known, kind, seed=seed) for seed in options.seeds]
                rows.append(
                    [dataset, kind, *(format_deviation(over_seeds([one[way] for one in found])) for way in WAYS)]
                )
                print(*rows[-1], flush=True)
        text = format_table(("dataset", "labels of the gallery", "as given", "after the verdicts", "all right"), rows)
        print(f"\n{text}")
        write_record(options.out / "relabel_gallery.json", settings=vars(options), results={"rows": rows}, text=text)


def search_relabelled(known: KnownLabels, kind: str, *, seed: int) -> dict[str, float]:
    """How often (%) the nearest image's label is what the query shows, by whose labels."""
    rows, given = mistake(known, kind, seed=seed)
    is_query = np.random.default_rng([seed, 1]).random(len(rows)) < QUERIES
    units, right = normalise_rows(known.features[rows]), known.right[rows]
    gallery = np.flatnonzero(~is_query)
    errors = find_label_errors(known.features[rows][gallery], given[gallery], count=len(known.classes))
    groups = np.arange(len(gallery))
    verdicts, new = give_verdicts(errors, given[gallery], groups=groups, rare=has_rare_class(given[gallery], groups))
    said = np.array(verdicts)
    cleaned = np.where(said == CHANGE, new, given[gallery])
    cosines = units[is_query] @ units[gallery].T
    found = {}
    for way, labels, kept in (
        ("given", given[gallery], slice(None)),
        ("cleaned", cleaned, said != DROP),
        ("right", right[gallery], slice(None)),
    ):
        nearest = cosines[:, kept].argmax(axis=1)
        found[way] = 100 * float((labels[kept][nearest] == right[is_query]).mean())
    return found


if __name__ == "__main__":
    main()
