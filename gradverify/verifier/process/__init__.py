"""The worker process: what answers the front, and how it is begun and ended."""
