"""Makes mbi.json: expected margins of a graphical model by mbi 2.0.0 (message passing), for given parameters.

    pip install mbi==2.0.0
    python make.py

Four answers with a cycle among three of them, and a public column of three levels that two factors depend on. mbi's
model is of one record of any cell, so the parameters of the public column are such that each cell has its number of
records: they are minus the log of what the other factors sum to in the cell, computed by adding up all combinations.
"""

import itertools
import json
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

from mbi import CliqueVector, Domain, Factor, marginal_oracles  # noqa: E402  64-bit numbers have to be asked for first

LEVELS = {"cell": 3, "a": 2, "b": 3, "c": 4, "d": 2}
FACTORS = [("a",), ("cell", "a"), ("cell", "b"), ("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")]
COUNT = [50, 20, 30]


def main() -> None:
    generator = np.random.default_rng(1)
    parameters = {one: generator.normal(size=[LEVELS[name] for name in one]).round(3) for one in FACTORS}
    names = list(LEVELS)
    total = np.zeros(LEVELS["cell"])
    for levels in itertools.product(*(range(size) for size in LEVELS.values())):
        at = dict(zip(names, levels, strict=True))
        total[at["cell"]] += np.exp(sum(parameters[one][tuple(at[name] for name in one)] for one in FACTORS))
    parameters_of_cell = np.log(np.array(COUNT) / total)
    domain = Domain(tuple(names), tuple(LEVELS.values()))
    cliques = [*FACTORS, ("cell",)]
    tables = {one: Factor(domain.project(one), jax.numpy.asarray(parameters[one])) for one in FACTORS}
    tables["cell",] = Factor(domain.project(("cell",)), jax.numpy.asarray(parameters_of_cell))
    found = marginal_oracles.message_passing_stable(CliqueVector(domain, cliques, tables), float(sum(COUNT)))
    margins = {one: np.asarray(found.project(one).project(one).values) for one in FACTORS}
    content = {
        "levels": LEVELS,
        "count": COUNT,
        "factors": [
            {"columns": one, "parameters": parameters[one].tolist(), "margin": margins[one].tolist()} for one in FACTORS
        ],
    }
    (Path(__file__).parent / "mbi.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
