"""Native precision: what a verified target makes of float32 and of 16 bits (GV601, GV602).

Native dtypes add to the verification in float64: it has given the truth that they are held against.
"""
