"""The guard on inferred inputs: a mismatch that another guess would not have is *inconclusive*."""
