"""A slow and obviously right twin of the one-pass estimates: every record is visited for every cell.

It writes out the textbook formulas record by record and shares no code with the package.
"""

import itertools
import math

import numpy as np


def twin_table(records, levels, lonely):
    """Estimate and standard error of every statistic for every cell, margin and the total.

    `records` is a list of dicts with y, w, stratum, psu (unique within the stratum), size (PSUs of the stratum in the
    population, or infinity), a, b. A scaled count or total is that of weights which were scaled to a known total.
    Returns {(statistic, a, b): (estimate, se, scale)}, where `scale` is the standard
    error that the same linearised values would have if nothing cancelled: the yardstick for rounding error.
    """
    result = {}
    population = math.fsum(record["w"] for record in records)
    for a, b in itertools.product(["All", *levels["a"]], ["All", *levels["b"]]):
        inside = [(a in ("All", record["a"])) and (b in ("All", record["b"])) for record in records]
        chosen = [record for record, is_in in zip(records, inside, strict=True) if is_in]
        count = math.fsum(record["w"] for record in chosen)
        total = math.fsum(record["w"] * record["y"] for record in chosen)
        share = count / population
        linear = {
            "count": (count, [r["w"] * i for r, i in zip(records, inside, strict=True)]),
            "total": (total, [r["w"] * r["y"] * i for r, i in zip(records, inside, strict=True)]),
            "proportion": (share, [r["w"] * (i - share) / population for r, i in zip(records, inside, strict=True)]),
        }
        for statistic, value in (("count", [1.0] * len(records)), ("total", [r["y"] for r in records])):
            whole = linear[statistic][0]
            linear[f"scaled {statistic}"] = (
                whole,
                [r["w"] * (i * v - whole / population) for r, i, v in zip(records, inside, value, strict=True)],
            )
        if chosen:
            mean = total / count
            linear["mean"] = (
                mean,
                [r["w"] * (r["y"] - mean) / count * i for r, i in zip(records, inside, strict=True)],
            )
            sizes = {"mean": count}
        for statistic, (estimate, z) in linear.items():
            magnitude = 1.0 if statistic.endswith(("count", "proportion")) else max(abs(r["y"]) for r in records)
            unit = {"proportion": population, "mean": sizes["mean"] if chosen else 1.0}
            scale = magnitude * math.sqrt(math.fsum(r["w"] ** 2 for r in records)) / unit.get(statistic, 1.0)
            result[statistic, a, b] = (estimate, math.sqrt(_variance(records, z, lonely)), scale)
    return result


def _variance(records, z, lonely):
    variance = 0.0
    for stratum in {record["stratum"] for record in records}:
        psus, size = {}, None
        for record, value in zip(records, z, strict=True):
            if record["stratum"] == stratum:
                psus.setdefault(record["psu"], []).append(value)
                size = record["size"]
        sums = np.array([math.fsum(values) for values in psus.values()])
        drawn = len(sums)
        unsampled = 1 - drawn / size
        if unsampled < 1e-7:
            continue
        if drawn == 1:
            variance += unsampled * float(sums[0]) ** 2 if lonely == "adjust" else 0.0
        else:
            center = math.fsum(sums) / drawn
            variance += unsampled * drawn / (drawn - 1) * math.fsum((sums - center) ** 2)
    return variance
