"""A case: bound sizes and options, and the inputs they give."""

from __future__ import annotations

from dataclasses import dataclass

from gradverify.model.words import Nested, Scalar

WORLD = "world"
"""What `world_size` of a spec is called among sizes."""


@dataclass(frozen=True)
class TensorInput:
    """A tensor argument with every size bound to a number."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float64"
    domain: str = "real"
    """`real`, `positive`, `negative`, `nonzero` or `unit`."""
    range: tuple[float, float] | None = None
    """Closed for floating dtypes, half-open for integer ones."""
    special: tuple[float, ...] = ()
    """Valid values worth planting at the `special` point; of integers also marks outside of the range."""
    avoid: tuple[float, ...] = ()
    """Declared kinks: drawn values keep away from them."""
    requires_grad: bool | None = None
    """None: differentiate it if its dtype is floating or complex."""
    value: Nested = None
    """Literal values instead of drawn ones; None draws them."""
    structure: str = ""
    """The manifold it lies on or the form it has: `spd`, `unit-norm`, `offsets`, ...; empty for none."""
    layout: str = ""
    """`sparse_coo` or `sparse_csr`; empty for strided."""
    ties: bool = False
    """Equal values are valid, and planted at the `special` point."""
    distinct: bool = False
    """No two entries may be equal, nor near enough for a step to reorder them."""
    constant_at: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(dimension, indices) pairs: slices that are never perturbed and whose gradient must be zero."""
    mutated: bool = False
    """Forward writes into it (a running buffer); it is not differentiated."""
    make: str = ""
    """`module:attribute` of a function (generator, device, dtype, shape) -> tensor that builds it."""
    placement: str = ""
    """How it lies on the ranks of a world: `local`, `replicate`, `shard(0)`, `partial`; empty without ranks.
    Of `local` and `partial` the first dimension of `shape` counts the ranks."""
    gradient: str = ""
    """How its gradient lies on them, where that is another way: `partial`, `partial(avg)`, `shard(0)`."""
    rank_shapes: tuple[tuple[int, ...], ...] = ()
    """The shape on each rank where they differ; `shape` is then that of all entries in a row."""


@dataclass(frozen=True)
class LiteralInput:
    """An argument passed as it is: a number, a string, a bool, a tuple, or None for an absent optional."""

    name: str
    value: Nested
    by_rank: tuple[Nested, ...] = ()
    """What each rank of a world gets, where that is not the same."""


@dataclass(frozen=True)
class ListInput:
    """Several tensors: one list argument, or what a `*args` parameter receives."""

    name: str
    items: tuple[TensorInput, ...]
    """Named as reports call them: `xs[0]`, `xs[1]`."""
    splatted: bool = False
    """Passed as so many positional arguments, not as one list."""


@dataclass(frozen=True)
class ConcatInput:
    """One tensor made of parts of different kinds, joined along the last dimension."""

    name: str
    parts: tuple[TensorInput, ...]


@dataclass(frozen=True)
class ObjectInput:
    """A live object passed as it is: a callable, a module, a type."""

    name: str
    path: str
    """Dotted path or `module:attribute`."""
    init: tuple[Scalar, ...] | None = None
    """Arguments to call it with first, None to pass the object itself."""


Input = TensorInput | LiteralInput | ListInput | ConcatInput | ObjectInput


def tensors_of(an_input: Input) -> tuple[TensorInput, ...]:
    """The tensors that an input draws: itself, the items of a list, the parts of a concatenation."""
    match an_input:
        case TensorInput():
            return (an_input,)
        case ListInput():
            return an_input.items
        case ConcatInput():
            return an_input.parts
        case LiteralInput() | ObjectInput():
            return ()


@dataclass(frozen=True)
class Annotation:
    """What a spec says of a tensor that a hook builds."""

    name: str
    requires_grad: bool | None = None
    avoid: tuple[float, ...] = ()
    constant_at: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """As of a `TensorInput`, but dimensions and indices may be negative: its shape is not known yet."""


@dataclass(frozen=True)
class Case:
    """One set of bound sizes and options of a target, with the seed its values are drawn from."""

    id: str
    """`b=3,n=4,mode=sum,bias=None`; `base` when nothing is bound."""
    seed: int
    sizes: tuple[tuple[str, int], ...] = ()
    options: tuple[tuple[str, Scalar], ...] = ()
    inputs: tuple[Input, ...] = ()
    """In call order. Empty when `hook` builds the arguments."""
    hook: str = ""
    """`module:attribute` of a function (generator, device, dtype, **sizes) -> arguments."""
    annotations: tuple[Annotation, ...] = ()
    """What is known of the tensors that `hook` builds."""
    init: tuple[tuple[str, Nested], ...] | None = None
    """`TargetPlan.init` at the sizes of this case: a module may be swept over its own dimensions."""

    @property
    def world(self) -> int:
        """How many ranks it runs on; 0 for this process alone."""
        placed = any(t.placement for i in self.inputs for t in tensors_of(i))
        return dict(self.sizes)[WORLD] if placed else 0
