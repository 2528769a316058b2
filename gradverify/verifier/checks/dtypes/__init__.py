"""Native dtypes: float32 and 16 bits beside the truth in float64 (GV601 to GV603)."""
