"""The batches of the programs that read and push rows of an embedding table: Zipf's law, as in tests/bench/row_gather.h."""
import numpy as np

BATCHES = 8
ZIPF = 1.05


def zipf_batches(rows, keys, seed):
    """BATCHES arrays of `keys` keys in [0, rows)."""
    uniform = np.random.default_rng(seed).random((BATCHES, keys))
    top = float(rows + 1) ** (1 - ZIPF)
    ranks = np.minimum(rows - 1, ((1 + uniform * (top - 1)) ** (1 / (1 - ZIPF)) - 1)).astype(np.uint64)
    # Frequent keys lie anywhere in the order of keys.
    return ((ranks * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(11)).astype(np.int64) % rows
