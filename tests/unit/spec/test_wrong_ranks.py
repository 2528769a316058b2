"""Wrong keys about ranks: one mistake, one sentence."""

import pytest

G = "group: {process_group: world}"
W = "world_size: 2"

ENTRIES = [
    ("{inputs: {x: {shape: [n], placement: local}}}", "`placement` says nothing without `world_size`"),
    (f"{{inputs: {{x: [n], {G}}}}}", "`process_group` needs a `world_size`"),
    ("{inputs: {x: [n]}, output_placement: local}", "`output_placement` says nothing without `world_size`"),
    ("{inputs: {x: [n]}, second_order: true}", "`second_order` says nothing without `world_size`"),
    (
        f"{{{W}, inputs: {{x: {{shape: [n], placement: shared(0)}}}}}}",
        "`placement` cannot be the string `shared(0)`; did you mean `shard(0)`?",
    ),
    (
        f"{{{W}, inputs: {{x: {{shape: [n], placement: shard}}}}}}",
        "`placement` cannot be the string `shard`; write the dimension that is split: `shard(0)`",
    ),
    (
        f"{{{W}, inputs: {{x: {{shape: [n], gradient: partial}}}}}}",
        "`gradient` is allowed with `placement: replicate` only",
    ),
    (
        f"{{{W}, inputs: {{x: {{shape: [n, n], structure: spd}}}}}}",
        "`structure` conflicts with a tensor of each rank: use replicate or shard",
    ),
    (
        f"{{{W}, inputs: {{x: {{shape: [rank], placement: replicate}}}}}}",
        "`rank` is allowed in the shape of a `local` tensor, in `size` and in `tuple`",
    ),
    (
        f"{{{W}, sizes: {{world: 3}}, inputs: {{x: [world]}}}}",
        "`world` is known where there is a `world_size`: call this size otherwise",
    ),
    ("{world_size: [2, 2], inputs: {x: [n]}}", "a `world_size` is listed twice"),
    (
        "{world_size: 1, inputs: {x: [n]}}",
        "a world of one rank does not communicate: list a larger one too, as in `[2, 1]`",
    ),
    (
        f"{{{W}, inputs: {{x: {{shape: [n], placement: shard(1)}}}}}}",
        "a tensor of 1 dimensions has no dimension 1 to split",
    ),
    ("{world_size: 0, inputs: {x: [n]}}", "a world has 1 to 16 ranks, not the number 0"),
    (
        f"{{{W}, inputs: {{x: [n]}}, output_placement: {{off: 0}}}}",
        "`output_placement` knows the mappings {replicate: {gradient: partial}} and {on: 0}",
    ),
    (
        f"{{{W}, arguments: 'm:hook'}}",
        "`arguments` conflicts with `world_size`: write a function of tensors as the target",
    ),
    (
        f"{{{W}, inputs: {{{G}, x: {{concat: [[n, 2], [n, 3]]}}}}}}",
        "`concat` conflicts with `world_size`",
    ),
]


@pytest.mark.parametrize(("entry", "expected"), ENTRIES)
def test_one_mistake_gives_one_error(complaints, entry, expected):
    assert complaints(entry) == [expected]
