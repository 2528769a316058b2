"""One run from targets to a `Report`: workers, limits, planning, statuses. Never imports torch."""
