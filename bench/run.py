"""Compares svysynth with other tools and makes docs/benchmarks.md: `make bench`.

Numbers go to bench/results/, and the page and its pictures are made from those files. Comparisons that a run does not
make, and tools that are not installed, keep their last values with the date on which they were measured.

    python bench/run.py                                           everything except 10⁸ records
    python bench/run.py --only tables fits                        some of the comparisons
    python bench/run.py --only releases --records 100000000       other numbers of records
    python bench/run.py --only bounds --device gpu                the bounds on a graphics processor
    python bench/run.py --compose                                 only the page
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

from measuring import SIZES, describe_machine
from page import write_page

COMPARISONS = ["tables", "fits", "calibrated", "releases", "sums", "bounds", "studies"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=COMPARISONS, default=COMPARISONS, help="what to measure")
    parser.add_argument("--compose", action="store_true", help="measure nothing, make the page from bench/results/")
    parser.add_argument("--records", type=int, nargs="+", default=SIZES, help="for tables, fits and releases")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu", help="for the bounds")
    chosen = parser.parse_args()
    options = {key: [chosen.records] for key in ("tables", "fits", "releases")} | {"bounds": [chosen.device]}
    for name in [] if chosen.compose else chosen.only:
        measure: Callable[..., None] = import_module(name).measure
        measure(*options.get(name, []))
    if not chosen.compose and chosen.device == "cpu":
        describe_machine()
    write_page()


if __name__ == "__main__":
    main()
