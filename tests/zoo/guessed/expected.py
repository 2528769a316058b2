"""What a verifier must answer here; the form of a row is that of ../general/expected.py."""

RIGHT = [
    "LstmCell", "GruCell", "SelectiveScan", "Rotary", "MessagePassing",
    "SegmentMean", "ModRelu", "PixelUnshuffle", "GroupNorm", "Suppressed",
    "CholeskyFactor", "HermiteSpline", "SymmetricExp", "Gate", "DroppedColumn",
    "Decayed", "FirstGates", "Convolved", "Contrast",
    "Slopes", "ChannelAffine", "MatrixRoot",
    "Packed", "UncheckedRows", "HeldBetween", "Splatted",
    "BandedMixing", "SegmentSum", "TapsOfOneLength",
]  # fmt: skip

OPEN = [
    "HeronRoot",  # no root at guessed values, and none at zero that has a slope
    "CoarseWeight",  # hands on what forward rounds
    "TutorialLstm",  # that two sizes agree is a demand of backward's alone
    "Tridiagonal",  # bands that are longer than backward makes them
    "DeltaRule",  # lengths that forward lets differ
    "TruncatedExp",  # backward clamps what forward does not
    "SkewExponential",  # a filter that is minus its own adjoint
    "BackwardWarp",  # planes that nothing reads
    "MessagePassingBackwards",  # the edges were guessed
    "Concentration",  # negative values mean nothing
    "KeptSystem",  # an object was guessed to be a tensor
    "KeptSystems",  # another one
    "SharedBase",  # a constant that has one row for all
    "PositionsInOneRow",  # the same, beside a scale for each row
    "ProperLength",  # the first entry is the largest
    "ScaledSum",  # as many tensors as weights
    "SemiDual",  # one potential and one mass for all rows
    "Quadratic",  # three coefficients
    "PseudoInverse",  # of square matrices
    "Eigen",  # whose eigenvectors have any scale
    "LeakyStates",  # a rate for each channel
    "GatedResponse",  # a gain for each channel
    "ProductOfOthers",  # divides by what is never zero
    "Updated",  # a covariance
    "Curved",  # one number for all
    "GuardedRatio",  # backward guards what forward does not
    "NewtonInverse",  # of square matrices
    "PenaltyOfItsOwn",  # an identity with a gradient of its own
    "Shared",  # the number of all entries
    "Settled",  # a number of rounds
    "Retained",  # rows, and a gate for each
    "Levels",  # straight-through, between bounds
    "SpectralPower",  # a power for each entry, of a matrix that was guessed to be definite
    "LossBeside",  # a loss that nothing depends on
    "MeanPower",  # of vectors
    "Spectrum",  # of complex numbers
    "Scan",  # a decay for each channel
    "TwoAdapters",  # two that go together, or neither
    "LowRank",  # a weight that may be learned
    "WeighedClasses",  # the same
]

EXPECTED = {("bare", name, "without spec"): {"status": "passed"} for name in RIGHT}
EXPECTED |= {
    ("bare", name, "without spec"): {
        "status": "inconclusive",
        "warnings": {"GV109"},
        "may": {"GV411", "GV410"},
    }
    for name in OPEN
}
EXPECTED["bare", "PositionsInOneRow", "without spec"]["may"] |= {"GV103"}  # which autograd sums, rightly
EXPECTED["bare", "ProductOfOthers", "without spec"]["may"] |= {"GV108"}  # NaN where an entry is zero, truly
EXPECTED["bare", "UncheckedRowsOnce", "without spec"] = {
    "status": "failed", "errors": {"GV101"}, "may": {"GV107"},
}  # fmt: skip
EXPECTED["bare", "OwnGradient", "without spec"] = {
    "status": "inconclusive", "warnings": {"GV109"}, "names": ["`gates`"],
}  # fmt: skip
EXPECTED["bare", "Between", "without spec"] = {
    "status": "unchecked", "or_else": {"inconclusive"}, "may": {"GV001", "GV109"},
}  # fmt: skip
EXPECTED |= {
    ("bare", name, "without spec"): {"status": "failed", "errors": codes, "names": words}
    for name, codes, words in (
        ("EnergyOfItsOwn", {"GV106"}, ["ignores grad_output"]),
        ("LabelsOfItsOwn", {"GV106"}, ["ignores grad_output"]),
        ("GruCellSwaps", {"GV101"}, ["`b_ih`", "`b_hh`"]),
        ("ScanForgetsSteps", {"GV101"}, ["`A`"]),
        ("ModReluPhase", {"GV101"}, ["`z`"]),
        ("SegmentSumTwice", {"GV101"}, ["`x`"]),
        ("SharedBaseTwice", {"GV101"}, ["`scale`"]),
        ("ProperLengthEuclidean", {"GV101"}, ["`x`"]),
        ("ChannelAffineTwice", {"GV101"}, ["`shift`"]),
        ("SemiDualForgets", {"GV101"}, ["`f`"]),
        ("QuadraticOnce", {"GV101"}, ["`x`"]),
        ("HingesInFloat32", {"GV101"}, ["`slopes`"]),
        ("DecayedLate", {"GV101"}, ["`a`"]),
        ("FirstGatesForwards", {"GV101"}, ["`x`"]),
        ("CellForgetsState", {"GV107"}, ["through output 1"]),
        ("ProductOfAll", {"GV101"}, ["`x`"]),
        ("UpdatedForgets", {"GV101"}, ["`mean`"]),
        ("NewtonInverseTurned", {"GV101"}, ["`A`"]),
        ("LargestOnly", {"GV101"}, ["`x`"]),
        ("TermOfItsOwn", {"GV106"}, ["`a`"]),
        ("ColumnMeans", {"GV101"}, ["`x`"]),
        ("ShiftedGradient", {"GV106"}, ["`x`"]),
        ("MeanPowerFlat", {"GV101"}, ["`x`", "`target`"]),
    )
}
EXPECTED |= {
    ("bare", name, "without spec"): {"status": "inconclusive", "warnings": {"GV109"}, "names": [words]}
    for name, words in (
        ("KeptTypo", "multiply_by"),  # what is asked in vain of a tensor may be an object's
        ("KeptAndMisspelt", "multiply_by"),
        ("SpectrumScaled", "`z`"),  # real inputs may be meant to be complex
    )
}
EXPECTED |= {
    ("bare", name, "without spec"): {
        "status": "inconclusive", "or_else": {"failed"}, "may": {"GV101", "GV109"},
    }
    for name in (
        "JacobiForgetsDiagonal", "ReverseDivergence", "ConvolvedHalf", "PooledLate", "HeldBetweenTwice",
        "BandedMixingTurned", "TwoAdaptersUnscaled", "MeanPowerOfRows",
    )
}  # fmt: skip
"""Wrong where a guess must lead, on pain of a false pass."""

for name in ("FirstGates", "TapsOfOneLength"):  # at some seeds what is guessed leads nowhere
    EXPECTED["bare", name, "without spec"] |= {"or_else": {"inconclusive"}, "may": {"GV109"}}
for name in ("GruCellSwaps", "SemiDualForgets", "HingesInFloat32"):
    EXPECTED["bare", name, "without spec"] = {
        "status": "failed", "or_else": {"inconclusive"}, "may": {"GV101", "GV109"},
    }  # fmt: skip
