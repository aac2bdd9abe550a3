"""Arrays: names for the arrays of JAX, which have 64 bits as soon as this file is imported."""

from __future__ import annotations

import jax

jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]

Array = jax.Array
Parameters = dict[str, Array]
