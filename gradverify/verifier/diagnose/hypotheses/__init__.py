"""Why a backward is wrong: hypotheses on two Jacobians, each of which one entry can refute."""
