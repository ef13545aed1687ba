"""Random numbers that follow from the job's seed: each batch has a seed of its own, whichever worker computes the batch."""
from __future__ import annotations

import random

import numpy as np

# Odd, so that a seed comes again only after 2^63 batches. The examples of a batch and what is computed from them have seeds of two
# sequences.
_OF_BATCHES, _OF_EXAMPLES = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03


def batch_seed(job_seed: int, batch: int) -> int:
    """The seed for computing a batch, in [0, 2^63)."""
    return (job_seed + _OF_BATCHES * (batch + 1)) % 2**63


def examples_seed(job_seed: int, batch: int) -> int:
    """The seed for making the examples of a batch, in [0, 2^63)."""
    return (job_seed + _OF_EXAMPLES * (batch + 1)) % 2**63


def seed_globals(seed: int) -> None:
    """Of NumPy's global generator and Python's `random`."""
    # An int of 32 bits is NumPy's fast way. The high bits differ most from batch to batch.
    np.random.seed(seed >> 31)
    random.seed(seed)
