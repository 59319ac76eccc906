"""queries.csv: a row a query, with what every candidate found for it."""

from __future__ import annotations

from pathlib import Path

from index.output_files import write_csv
from index.text import valid_text
from retrieval_app.comparing.comparison import TABLE_START, Comparison
from retrieval_app.reports.duplicates_report import guard_cell


def write_query_table(comparison: Comparison, path: Path) -> None:
    """Write the table: of each candidate whether its first hit is right (1 or 0), and the query's share of its MAP@R.

    A path, label or name that a spreadsheet would take for a formula has an apostrophe before it.
    """
    scoring, photos = comparison.scoring, comparison.photos.photos
    names = [guard_cell(valid_text(one.name)) for one in comparison.candidates]
    header = [*TABLE_START, *(f"{what} {name}" for name in names for what in ("right", "map_at_r"))]
    scores = [one.scores for one in scoring.scored]
    rows = (
        [
            guard_cell(photos[row].path),
            guard_cell(photos[row].label or ""),
            photos[row].sha256,
            *(
                value
                for one in scores
                for value in (int(one.hits[1][query]), round(float(one.average_precision[query]), 6))
            ),
        ]
        for query, row in enumerate(scoring.queries.tolist())
    )
    write_csv(path, header, rows)
