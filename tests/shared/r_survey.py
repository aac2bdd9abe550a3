"""R's `survey`: whether it is here, with what the reports' code needs, and what it says of public files."""

import shutil
import subprocess
from functools import cache

import polars as pl
import pytest


@cache
def r_is_here():
    rscript = shutil.which("Rscript")
    wanted = "q(status = !all(sapply(c('survey', 'mitools'), requireNamespace, quietly = TRUE)))"
    return rscript and subprocess.run([rscript, "-e", wanted], capture_output=True, check=False).returncode == 0


def skip_without_r():
    if not r_is_here():
        pytest.skip("R with the packages survey and mitools is not installed here")


def r_of_clusters(public, folder):
    """`svydesign` with the strata and clusters of the first public file: means of cells with their standard errors.

    `whole` has the standard error of the mean of all, and `total` that of the number of those whose sex is m.
    """
    code = f"""
    library(survey)
    file <- read.csv("{public}/microdata-1.csv")
    design <- svydesign(ids = ~village, strata = ~region, weights = ~weight, data = file, nest = TRUE)
    found <- svyby(~income, ~region + sex, design, svymean)
    whole <- SE(svymean(~income, design))[1]
    total <- SE(svytotal(~as.numeric(sex == "m"), design))[1]
    write.csv(data.frame(found, whole = whole, total = total), "{folder}/r.csv", row.names = FALSE)
    """
    (folder / "r.R").write_text(code)
    subprocess.run(["Rscript", "--vanilla", "r.R"], cwd=folder, check=True, capture_output=True)
    return pl.read_csv(folder / "r.csv")
