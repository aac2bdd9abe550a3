"""Arrays: what JAX's are called here. They have 64 bits wherever this file has been read."""

from __future__ import annotations

import jax

jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]

Array = jax.Array
Parameters = dict[str, Array]
