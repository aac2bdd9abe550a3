"""Fingerprint: a keyed hash that tells whether two releases were made from the same confidential answers.

Only a holder of the key can use it. A plain hash would let anyone who knows all answers but one try values for that one
until the hash is right. The key is in the ledger, which is internal; no fingerprint goes into a public file.
"""

from __future__ import annotations

import hashlib

import numpy as np

from svysynth.core.engine import frame_ranges
from svysynth.survey.survey import Survey


def fingerprint(survey: Survey, key: bytes) -> str:
    """Keyed BLAKE2b of the outcomes and weights in the order of the records, read a part at a time."""
    digest = hashlib.blake2b(digest_size=32, key=key)
    columns = survey.values(survey.outcome), survey.values(survey.design.weight)
    for part in frame_ranges(len(survey)):
        for column in columns:
            digest.update(np.ascontiguousarray(column[part.start : part.stop], "<f8").data)
    return digest.hexdigest()
