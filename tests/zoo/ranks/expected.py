"""What a verifier must answer for every Function of this folder; see `tests/zoo/general/expected.py`.

`cause`: the causes that the findings may name, exactly these.
"""

RIGHT = (
    "CopyToRegion",
    "ReduceFromRegion",
    "AllReduce",
    "AllReduce@partial",
    "ScatterToRegion",
    "GatherFromRegion",
    "SequenceReduceScatter",
    "SequenceAllGather",
    "ColumnParallelLinear",
    "RowParallelLinear",
    "VocabularyParallelEmbedding",
    "VocabularyParallelCrossEntropy",
    "ExpertAllToAll",
    "RingPass",
    "SyncBatchNorm",
    "HaloExchange",
    "Broadcast",
    "ReduceToFirst",
    "DataParallelScale",
    "AveragedInHooks",
    "AsyncWaited",
    "SumOfTwo",
    "SquareInPlace",
    "MixInPlace",
)

WRONG = {
    "CopyWithoutReduction": {"errors": {"GV101", "GV722"}, "cause": {"missing-reduction"}},
    "ReducedTwice": {"errors": {"GV101"}, "cause": {"constant-factor"}, "names": ["number of ranks"]},
    "AllReduceWithoutReduction": {"errors": {"GV101"}, "cause": {"missing-reduction"}},
    "AveragedGradient": {"errors": {"GV101"}, "cause": {"constant-factor"}, "names": ["number of ranks"]},
    "ScatterLosesOthers": {"errors": {"GV101", "GV722"}, "cause": {"missing-reduction"}},
    "GatherGivesFirstChunk": {"errors": {"GV101"}},
    "GatherAlongOtherDimension": {"errors": {"GV101"}},
    "SequenceGatherForgetsToSum": {"errors": {"GV101"}, "cause": {"missing-reduction"}},
    "ColumnParallelWithoutReduction": {"errors": {"GV101", "GV722"}, "cause": {"missing-reduction"}},
    "ColumnParallelReducesBoth": {"errors": {"GV101"}, "cause": {"extra-reduction"}, "names": ["weight"]},
    "RowParallelBiasOnEachRank": {"errors": {"GV101"}, "cause": {"constant-factor"}, "names": ["bias"]},
    "EmbeddingOfOtherRanks": {"errors": {"GV101"}},
    "RingTheSameWay": {"errors": {"GV101"}, "cause": {"other-rank"}},
    "SyncBatchNormLocalStatistics": {"errors": {"GV101"}},
    "HaloDropsNeighbours": {"errors": {"GV101"}, "cause": {"missing-reduction"}},
    "ReducesOnFirstRankAlone": {"errors": {"GV723"}, "names": ["rank 0 is in all_reduce", "right.py:"]},
    "ReducesWhereLarge": {"errors": {"GV723"}},
    "OtherOrderOnOddRanks": {"errors": {"GV723"}, "names": ["all_reduce", "broadcast"]},
    "RaisesOnOneRank": {"errors": {"GV102"}, "names": ["on rank 1 alone: no gradient here"]},
    "EndsOneRank": {"errors": {"GV723"}, "names": ["the process of rank 1 has ended"]},
    "NotWaitedFor": {
        "any_of": {"GV101", "GV106", "GV410", "GV722"},
        "may": {"GV101", "GV106", "GV410", "GV722"},
    },
    "IgnoresGroup": {"errors": {"GV724"}, "names": ["in another group"]},
    "SourceIsNoGlobalRank": {"errors": {"GV724"}},
    "ForwardNotReduced": {"errors": {"GV101", "GV721"}},
    "ReducesGradOutputInPlace": {"errors": {"GV401"}},
    "ReducesInputInPlace": {"errors": {"GV402"}, "may": {"GV405", "GV721"}},
    "TakesGradOutputForContiguous": {"errors": {"GV404"}},
    "WritesUnmarked": {"errors": {"GV402"}, "may": {"GV405"}},
    "MissesSumInPlace": {"errors": {"GV101"}, "cause": {"missing-reduction"}, "may": {"GV405"}},
    "BothReceiveFirst": {"errors": {"GV723"}, "names": ["nothing happens any more"]},
}

EXPECTED = {
    **{("right", name, "with spec"): {"status": "passed"} for name in RIGHT},
    **{("wrong", name, "with spec"): {"status": "failed", **row} for name, row in WRONG.items()},
    ("wrong", "SquareInPlace", "with spec"): {"status": "passed"},
}
