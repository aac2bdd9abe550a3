"""Makes the measured tables of docs/choosing.md from the results of bench/noisy_sums.py.

    python bench/choosing_page.py

The results come from

    python bench/noisy_sums.py bench/results/choosing.csv --keep FOLDER --population CPSSW8 --folder WHERE_THE_FILE_IS
        --records 300 1000 3000 10000 30000 --methods fbs laplace --epsilon 0.5 1 2 4 10 --replicates 40 --draws 250
        --rounds 1

Each table stands between two comments in the page; the rest of the page is written by hand.
"""

import re
from pathlib import Path

import polars as pl

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "choosing.md"
RESULTS = HERE / "results" / "choosing.csv"
CLASSES = [("count", "field"), ("count", "inner"), ("mean", "field"), ("mean", "inner"), ("mean", "total")]
MEASURED = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main():
    found = pl.read_csv(RESULTS, infer_schema_length=None).filter(pl.col("kind") == "tables")
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


def with_tables(page, found):
    """The page, with each of its measured tables made from these results."""
    return MEASURED.sub(lambda place: place[1] + table(found, place[2]) + place[3], page)


def table(found, method):
    """Interval lengths over the sample's own: a row for each number of records, a column for each ε of the spec."""
    own = found.filter(pl.col("method") == method)
    epsilons = own["epsilon"].unique().sort()
    text = "| records | " + " | ".join(f"ε = {2 * epsilon:g}" for epsilon in epsilons) + " |\n"
    text += "|--:|" + "---|" * len(epsilons) + "\n"
    for (records,), rows in own.group_by("records", maintain_order=True):
        cells = [entry(rows.filter(pl.col("epsilon") == epsilon)) for epsilon in epsilons]
        text += f"| {records:,} | " + " | ".join(cells) + " |\n"
    return text


def entry(rows):
    """An entry: counts of regions and of inner cells; means of regions, of inner cells and of the whole."""
    lengths = [rows.row(by_predicate=has(*one), named=True)["length_over_sample"] for one in CLASSES]
    shown = [f"{length:.2f}" if length < 10 else f"{length:.0f}" for length in lengths]
    return f"{', '.join(shown[:2])}; {', '.join(shown[2:])}"


def has(statistic, cells):
    return (pl.col("statistic") == statistic) & (pl.col("cells") == cells)


if __name__ == "__main__":
    main()
