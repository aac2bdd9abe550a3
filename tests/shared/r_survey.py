"""Whether R is here with the packages that the reports' code needs."""

import shutil
import subprocess
from functools import cache


@cache
def r_is_here():
    rscript = shutil.which("Rscript")
    wanted = "q(status = !all(sapply(c('survey', 'mitools'), requireNamespace, quietly = TRUE)))"
    return rscript and subprocess.run([rscript, "-e", wanted], capture_output=True, check=False).returncode == 0
