"""What the name of a parameter says of it: a habit of authors, and no proof."""

from __future__ import annotations

import re
from enum import Enum


class Habit(Enum):
    """What parameters of some names mostly are."""

    INDEX = (
        r"(^|_)(idx|inds?|index|indexs|indices|ids?|labels?|perm|permutation|targets?|segments?|lengths?|batch"
        r"|neighbors?|edge_index|assignment|class(es)?)\d*($|_)|.*(indices|_idx|_ind|_index|_ids)$"
    )
    OFFSETS = (
        r"^cu_?\w*(lens?|offsets?)(_\w+)?$|(^|_)(offsets?|indptr|row_?ptr|ptr|crow|ccol|splits|boundaries)$"
    )
    LENGTHS = (
        r"(^|_)(lengths|lens|counts|sizes|sections|splits|num_(points|nodes|atoms|tokens)|batch_sizes)$"
        r"|^n_per_\w+$"
    )
    PERMUTATION = r"(^|_)(perm|permutation|permute_idx|sort(ed)?_(idx|ind|index|indices|ids)|order)$"
    AXES = r"^(axes|dims|reduce_dims|dimensions)$"
    MASK = r"(^|_)(mask|masks|padding_mask|valid|keep)($|_)|.*_mask$"
    FLAG = (
        r"^(is|use|with|do|has|should|return|keep|need|enable|allow)_.*|^(training|inplace|keepdim|bias|reverse"
        r"|normali[sz]e|average|size_average|reduce|causal|symmetric|signed|narrow|verbose|inverse|transpose"
        r"|adjoint|periodic|hard|debug|deterministic|preserve_rng_state|unpack_data|train)$"
    )
    TRAINING = r"^(is_)?train(ing)?$"
    INT = (
        r"^(k|n|m|dim|axis|step|steps|stride|padding|pad|groups|dilation|order|degree|bits|levels|size|length"
        r"|max_iter|iterations|maxiter|n_iter|count|depth|ndim|p|seed|chunks?|blank|blank_idx|kernel_size"
        r"|output_size|mode)$|^(n|num|max)_.*"
        r"|.*_(size|dim|bits|iter|iters|num|steps|length|axis|count)$|.*(size|width)$"
    )
    FLOAT = (
        r"^(eps|epsilon|alpha|beta|gamma|delta|lambda_?|lambd|lam|lambda_?val|scale|slope|temperature|temp|tau"
        r"|margin|sigma|rate|p|momentum|coeff|coef|constant|factor|weight_decay|lr|threshold|thresh|theta"
        r"|grad_scale|width|min|max|min_val|max_val|lower|upper|low|high|gradient_scaling|multiplier|strength"
        r"|rho|c|a|b|t|h|dt|step_size)$"
        r"|.*_(eps|rate|scale|factor|slope|threshold|alpha|beta|lambda|coeff|weight|width|val|value)$"
    )
    SMALL = r"(^|_)(eps|epsilon|tol|atol|rtol|tolerance|jitter)\d*($|_)"
    LIST = r"^(inputs|tensors|xs|args|params|weights|list|arrays|features)$"
    CALLABLE = (
        r"^(f|fn|fun|func|function|kernel|callback|closure|run_function|distance|dist_fn|metric|activation)$"
        r"|.*_(fn|func|function)$"
    )


def habits_of(name: str) -> frozenset[Habit]:
    """Those that a name tells of."""
    plain = name.lower().strip("_")
    searched = {Habit.OFFSETS, Habit.LENGTHS, Habit.PERMUTATION, Habit.SMALL}
    return frozenset(h for h in Habit if (re.search if h in searched else re.match)(h.value, plain))
