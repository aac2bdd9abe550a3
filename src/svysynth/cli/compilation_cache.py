"""The compilation cache: programs that JAX has compiled are kept between runs and shared by worker processes.

The programs hold no data. Commands that need JAX turn the cache on before JAX is imported. Environment variables that
the user has set are kept.
"""

from __future__ import annotations

import os
from pathlib import Path


def keep_compiled_programs() -> None:
    """From now on, keep the programs that JAX compiles in the user's cache folder."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "svysynth"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
