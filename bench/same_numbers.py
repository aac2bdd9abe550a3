"""Checks whether a change of the code leaves every number the same, by seeded releases and a study before and after.

    python bench/same_numbers.py make BEFORE     # with the code before the change
    python bench/same_numbers.py make AFTER      # with the code after the change
    python bench/same_numbers.py compare BEFORE AFTER

`make` runs the command line on a part of the demo's survey: a release by each mechanism, two of them also on a Dask
cluster and so from disk, direct tables, a frontier, and the paper's simulation with a few samples. All have seeds.
`compare` names every file that is not the same to the last byte, and exits with code 1 if there is one. Both runs have
to be made on the same machine with the same versions.
"""

import argparse
import re
import sys
from pathlib import Path

import polars as pl

from svysynth.cli.main import main as command_line
from svysynth.cli.release import write_example

RECORDS, SAMPLES, SEED = 1500, 4, "5"
BOUNDS = "bounds = { outcome = [5000, 1_000_000], weight = [0.5, 500] }\n"
ASYMPTOTIC = 'guarantee = "asymptotic"\nepsilon = 10.8\ndatasets = 3\n'
GLOBAL = f'guarantee = "global"\nepsilon = 6.0\n{BOUNDS}'
MECHANISMS = {
    "fbs-asymptotic": f'mechanism = "fbs"\n{ASYMPTOTIC}',
    "fbs-uncorrected": f'mechanism = "fbs"\ncorrection = false\n{ASYMPTOTIC}',
    "fbp-asymptotic": f'mechanism = "fbp"\n{ASYMPTOTIC}',
    "fbs-global": f'mechanism = "fbs"\n{GLOBAL}',
    "fbp-global": f'mechanism = "fbp"\n{GLOBAL}',
    "fbs-record": f'mechanism = "fbs"\nprotect = "record"\n{GLOBAL}',
    "laplace": f'mechanism = "laplace"\n{GLOBAL}',
}
ON_A_CLUSTER = ("fbp-asymptotic", "fbs-global")


def make(folder):
    """Make everything that is compared, in a new folder."""
    folder.mkdir(parents=True)
    example = write_example(folder)
    data = folder / "doctorates.csv"
    pl.read_csv(data, infer_schema=False).sample(RECORDS, seed=1).write_csv(data)
    before, own, after = re.split(r"(\[privacy\]\n.*?\n)(?=\n\[\[tables)", example.read_text(), flags=re.DOTALL)
    assert "mechanism" in own
    for name, settings in MECHANISMS.items():
        spec = folder / f"{name}.toml"
        spec.write_text(f"{before}[privacy]\nbudget = 'doctorates'\n{settings}{after}")
        run("release", spec, "--out", folder / name, "--seed", SEED)
        if name in ON_A_CLUSTER:
            run("release", spec, "--out", folder / f"{name}-disk", "--seed", SEED, "--engine", "dask")
    spec = folder / "fbs-global.toml"
    run("tables", spec, "--out", folder / "direct.csv")
    run(
        "frontier",
        spec,
        "--epsilon",
        "6",
        "--datasets",
        "3",
        "--repeats",
        "1",
        "--seed",
        SEED,
        "--out",
        folder / "frontier",
    )
    run("study", "simulation", "--replicates", str(SAMPLES), "--out", folder / "study")


def run(*words):
    """Run one command; a refusal is an error here."""
    print("svysynth", *words, flush=True)
    try:
        command_line([str(word) for word in words])
    except SystemExit as left:
        if left.code:
            raise RuntimeError(words) from None


def compare(before, after):
    """The files that differ or that only one folder has, and the number of files that are the same."""
    found = [contents(before), contents(after)]
    paths = sorted(found[0].keys() | found[1].keys())
    differ = [path for path in paths if found[0].get(path) != found[1].get(path)]
    return differ, len(paths) - len(differ)


def contents(folder):
    """Every file's bytes without the folder's own path, except the frontier's picture, which has random identifiers."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.parent.name + path.suffix != "frontier.svg"]
    own = str(folder.resolve()).encode()
    return {path.relative_to(folder): path.read_bytes().replace(own, b"") for path in paths}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("make").add_argument("folder", type=Path)
    comparison = commands.add_parser("compare")
    comparison.add_argument("before", type=Path)
    comparison.add_argument("after", type=Path)
    settings = parser.parse_args()
    if settings.command == "make":
        make(settings.folder)
        return
    differ, alike = compare(settings.before, settings.after)
    for path in differ:
        print("differs:", path)
    print(f"{alike} files are the same, {len(differ)} differ")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
