"""What in a module has a backward: `torch.autograd.Function` subclasses, and operators that it registers.

The line on which a class or a function is defined, from one parse of its file.

Which functions of compiled extensions a target calls: kernels whose source cannot be read.

Functions of a module that no name of it leads to: made by a factory, defined in a function.

Another function in the place of a target's own backward, for a while.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction

from gradverify.model import Parameter, PassedOver, Target, TargetKind
from gradverify.source import Method, definition, functions_of, module_of, names_called, parts_of
from gradverify.verifier.targets.operators import (
    Operator,
    defaults_of_schema,
    line_of_operator,
    operator_of,
    overloads_of,
    parameters_of_schema,
    registered_operators,
)


def line_of(value: Any) -> int:  # noqa: ANN401
    """Line of the definition, decorators included; 1 where it cannot be known.

    `inspect` parses the whole file again for every class it is asked about: 1.2 s for 45 Functions.
    """
    try:
        defined = inspect.unwrap(value) if callable(value) else value
        span = _span_of_class(defined)[1] if isinstance(defined, type) else None
        return inspect.getsourcelines(defined)[1] if span is None else span[0]
    except (OSError, TypeError, ValueError, SyntaxError):
        return 1


def source_of_class(defined: type) -> str:
    """The text of its class statement, decorators included.

    Raises as `inspect.getsource` does.
    """
    file, span = _span_of_class(defined)
    if span is None:
        return inspect.getsource(defined)
    return "".join(linecache.getlines(file)[span[0] - 1 : span[1]])


def source_of(module: ModuleType | None) -> str:
    """The text of a module; empty where it cannot be had."""
    try:
        return inspect.getsource(module) if module is not None else ""
    except (OSError, TypeError):
        return ""


def _span_of_class(defined: type) -> tuple[str, tuple[int, int] | None]:
    """File, first and last line; of several with one name, of that which holds its own methods.

    Raises `OSError` for a class that no statement of its file defines.
    """
    module = sys.modules.get(defined.__module__)
    file = inspect.getsourcefile(module or defined) or ""
    text = "".join(linecache.getlines(file))
    spans = module_of(text).classes.get(defined.__qualname__, ())
    if text and not spans:
        # As inspect says, which parses the whole file again to find that out.
        raise OSError(f"no class statement of {defined.__qualname__}")
    codes = (getattr(method, "__code__", None) for method in _own(defined))
    lines = [code.co_firstlineno for code in codes if code is not None and code.co_filename == file]
    holding = [span for span in spans if any(span[0] <= line <= span[1] for line in lines)]
    return file, next(iter((*holding, *spans[-1:])), None)


_WELL_KNOWN = {*sys.stdlib_module_names, "numpy", "torch"}
"""Packages whose compiled functions are no kernels of an author's own."""

_OF_TORCH = ("aten", "prim")
"""Namespaces of torch's own operators: `aten::add` is shown as `aten.add`."""


def compiled_calls(methods: Iterable[Callable[..., Any]]) -> tuple[str, ...]:
    """Names of the compiled functions that methods and their helpers call, in order."""
    return tuple(dict.fromkeys(name for method in methods for name in _called(method)))


def _called(method: Callable[..., Any]) -> Iterator[str]:
    for name, known in names_called(method):
        if _is_compiled(_found(name, known)):
            yield name


def _found(name: str, known: Mapping[str, Any]) -> Any:  # noqa: ANN401 - whatever it names
    first, *rest = name.split(".")
    value = known.get(first)
    for part in rest:
        value = getattr(value, part, None)
    return value


def _is_compiled(value: Any) -> bool:  # noqa: ANN401
    """Whether it is of an extension, and autograd sees nothing of what it does."""
    if isinstance(value, OpOverload | OpOverloadPacket):
        operator = operator_of(value)
        foreign = operator is not None and operator.definition is None and not operator.is_differentiable
        return foreign and not str(value).startswith(_OF_TORCH)
    package = str(getattr(value, "__module__", None) or "torch").partition(".")[0]
    return isinstance(value, BuiltinFunctionType) and package not in _WELL_KNOWN


IN_A_FUNCTION = ".<locals>."
"""Stands in the qualified name of what is defined while a function runs (Python's own word)."""


def unreached(module: ModuleType, shown_path: str, reached: set[str]) -> tuple[Target, ...]:
    """The Functions that have a backward and are not among `reached` (qualified names), in source order.

    Those that exist already are found among the subclasses of `Function`, the others in the source.
    """
    lines = dict(_in_source(module))
    lines |= {c.__qualname__: line_of(c) for c in _alive(Function, module)}
    return tuple(
        Target(name, name, TargetKind.FUNCTION, shown_path, line, unreached=True)
        for name, line in sorted(lines.items(), key=lambda pair: pair[::-1])
        if name not in reached
    )


def applied_functions(outputs: tuple[Tensor, ...]) -> set[tuple[str, str]]:
    """(file, qualified name) of the Functions in the autograd graph behind some tensors."""
    nodes: list[Any] = [t.grad_fn for t in outputs]
    seen: set[Any] = set()
    found: set[type] = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            found.add(type(node)._forward_cls)  # type: ignore[attr-defined]  # noqa: SLF001 - its only name
        nodes += [following for following, _ in node.next_functions]
    return {(_file_of(c), c.__qualname__) for c in found}


def _file_of(value: type) -> str:
    return getattr(sys.modules.get(value.__module__), "__file__", None) or ""


def _alive(base: type[Function], module: ModuleType) -> Iterator[type[Function]]:
    """The Functions with a backward that methods of a module's own make up, whatever holds them."""
    for value in base.__subclasses__():
        yield from _alive(value, module)
        has_both = value.forward is not Function.forward and (
            value.backward is not Function.backward or value.vjp is not Function.vjp
        )
        if has_both and value.__module__ == module.__name__ and any(_is_of(m, module) for m in _own(value)):
            yield value


def _own(value: type) -> Iterator[Any]:
    return (getattr(member, "__func__", member) for member in vars(value).values())


def _is_of(member: Any, module: ModuleType) -> bool:  # noqa: ANN401 - whatever a class holds
    """Whether it is a function of this very module: one of its name may have been loaded before."""
    return isinstance(member, FunctionType) and member.__globals__ is vars(module)


def _in_source(module: ModuleType) -> Iterator[tuple[str, int]]:
    """Qualified name and line of the Functions with a backward that functions of a module define."""
    for found in functions_of(source_of(module)):
        if found.forward and found.backward and IN_A_FUNCTION in found.qualified_name:
            yield found.qualified_name, found.line


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""From a backward to what is in its place."""


@contextmanager
def wrapped_backward(function: type[Function], wrap: Wrap) -> Iterator[Any]:
    """Put a wrapper in place of the class's backward while the context lasts; gives what is there."""
    name = backward_name(function)
    own = vars(function).get(name)
    wrapper = staticmethod(wrap(getattr(function, name)))
    setattr(function, name, wrapper)
    try:
        yield wrapper
    finally:
        if own is None:
            delattr(function, name)
        else:
            setattr(function, name, own)


@contextmanager
def wrapped_operator(operator: Operator, wrap: Wrap) -> Iterator[None]:
    """The same of the backward that an operator's definition holds; torch looks it up at each call.

    Raises `ValueError` for an operator whose backward is no Python function.
    """
    definition, original = operator.definition, operator.backward
    if definition is None or original is None:
        raise ValueError(f"the backward of {operator.name} cannot be replaced")
    definition._backward_fn = wrap(original)  # noqa: SLF001
    try:
        yield
    finally:
        definition._backward_fn = original  # noqa: SLF001


def discover(module: ModuleType, shown_path: str) -> tuple[tuple[Target, ...], tuple[PassedOver, ...]]:
    """What a module defines itself, in source order, and what was looked at but not taken."""
    targets, passed_over = registered_operators(module, shown_path)
    reached: set[str] = set()
    for name, value in _named_functions(module).items():
        line = line_of(value)
        reason = _reason_to_pass_over(value, module)
        reached.add(value.__qualname__)
        if reason:
            passed_over.append(PassedOver(name, line if value.__module__ == module.__name__ else 0, reason))
        else:
            reached |= _class_statements(value)
            targets.append(describe_target(value, name, name, shown_path))
    targets += unreached(module, shown_path, reached)
    return tuple(sorted(targets, key=lambda t: (t.line, t.name))), tuple(sorted(passed_over, key=_by_line))


def _named_functions(module: ModuleType) -> dict[str, type[Function]]:
    """The Functions that names of a module lead to, each once: by its own name before one of its `apply`.

    Those of other modules count only where a name holds the class itself.
    """
    found: dict[int, tuple[str, type[Function]]] = {}
    applied: list[tuple[str, type[Function]]] = []
    for name, value in _names_within(module, module.__name__):
        # Of other objects nothing is asked: a lazy module or a proxy may raise at any attribute.
        behind = target_behind(value) if issubclass(type(value), type | MethodType) else None
        if not isinstance(behind, type) or not _is_function_class(behind):
            continue
        if behind is value:
            found.setdefault(id(behind), (name, behind))
        elif behind.__module__ == module.__name__:
            applied.append((name, behind))
    for name, behind in applied:
        found.setdefault(id(behind), (name, behind))
    return dict(found.values())


def _names_within(owner: Any, module: str, prefix: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """The names of a module with what they hold, then those within its own classes, as `Layer.Inner`."""
    values = {n: v.__func__ if isinstance(v, staticmethod) else v for n, v in vars(owner).items()}
    yield from ((prefix + name, value) for name, value in values.items())
    for name, value in values.items():
        is_own = issubclass(type(value), type) and value.__module__ == module
        if is_own and value.__qualname__ == prefix + name:
            yield from _names_within(value, module, f"{prefix}{name}.")


def describe_target(
    value: Any,  # noqa: ANN401
    name: str,
    attribute: str,
    shown_path: str,
    module: ModuleType | None = None,
) -> Target:
    """Describe a live Function class, operator, module class or callable."""
    operator = operator_of(value)
    return Target(
        name=name,
        attribute=attribute,
        kind=_kind_of(value),
        file=shown_path,
        line=line_of(value) if operator is None else line_of_operator(operator, module),
        parameters=parameters_of(value),
        compiled=compiled_calls(_differentiated(value)),
    )


def _differentiated(value: Any) -> tuple[Callable[..., Any], ...]:  # noqa: ANN401
    """Forward and backward, where they are Python functions of the author's."""
    operator = operator_of(value)
    if operator is not None:
        return tuple(f for f in (operator.implementation, operator.backward) if f is not None)
    if _kind_of(value) is not TargetKind.FUNCTION:
        return ()
    return value.forward, getattr(value, backward_name(value))


def parameters_of(value: Any) -> tuple[Parameter, ...]:  # noqa: ANN401
    """Parameters of a callable, or of a Function's forward without its `ctx`; empty where unknown."""
    operator = operator_of(value)
    if operator is not None:
        return parameters_of_schema(operator)
    is_function = _kind_of(value) is TargetKind.FUNCTION
    return tuple(
        Parameter(
            name=p.name,
            has_default=p.default is not p.empty,
            annotation="" if p.annotation is p.empty else inspect.formatannotation(p.annotation),
            variadic=p.kind is p.VAR_POSITIONAL,
            keyword_only=p.kind is p.KEYWORD_ONLY,
            parts=_parts(value) if p.kind is p.VAR_POSITIONAL and is_function else (),
        )
        for p in _signature(value)
        if p.kind is not p.VAR_KEYWORD
    )


def _signature(value: Any) -> list[inspect.Parameter]:  # noqa: ANN401
    """What a callable, or forward without its `ctx` or `self`, takes; nothing where it is unknown."""
    kind = _kind_of(value)
    try:
        found = inspect.signature(value if kind is TargetKind.CALLABLE else value.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    has_own = kind is TargetKind.MODULE or (kind is TargetKind.FUNCTION and not uses_setup_context(value))
    return list(found)[has_own:]


def _parts(value: Any) -> tuple[Parameter, ...]:  # noqa: ANN401
    """What the `*args` of a Function's forward holds, where the source has names for that."""
    forward = definition(value.forward)
    if forward is None:
        return ()
    context = definition(value.setup_context) if uses_setup_context(value) else None
    return parts_of(value.__name__, forward, context, module_of(source_of(inspect.getmodule(value))))


def _kind_of(value: Any) -> TargetKind:  # noqa: ANN401
    if isinstance(value, type) and issubclass(value, Function):
        return TargetKind.FUNCTION
    if isinstance(value, type) and issubclass(value, nn.Module):
        return TargetKind.MODULE
    return TargetKind.CALLABLE if operator_of(value) is None else TargetKind.CUSTOM_OP


def defaults_of(value: Any) -> dict[str, Any]:  # noqa: ANN401
    """Parameters in call order, with their default or `...` for none; `*args` are left out.

    Those that are passed by name alone come last: `gradverify.verifier.targets.operators` calls with them.
    """
    operator = operator_of(value)
    if operator is not None:
        return defaults_of_schema(operator)
    is_function, found = _kind_of(value) is TargetKind.FUNCTION, _signature(value)
    taken = [p for p in found if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    taken += [p for p in found if p.kind is p.KEYWORD_ONLY and not is_function]
    return {p.name: ... if p.default is p.empty else p.default for p in taken}


def target_behind(value: Any) -> Any:  # noqa: ANN401
    """What is verified under a name: the Function class where the name holds its `apply`."""
    owner = getattr(value, "__self__", None)
    applied = isinstance(owner, type) and issubclass(owner, Function) and value == owner.apply
    return owner if applied else value


def why_no_target(value: Any, *, init: bool) -> str:  # noqa: ANN401 - any live object
    """Why an object cannot be verified, as the end of a sentence; empty where it can."""
    overloads = overloads_of(value)
    if len(overloads) > 1:
        named = ", ".join(f"`{name}`" for name in overloads[:4])
        return f"an operator with several overloads: name one of {named} behind it"
    if not isinstance(value, type):
        return "" if callable(value) else f"{type(value).__name__}, not a Function or callable"
    if issubclass(value, Function):
        return "an autograd.Function: it takes no `init:`" if init else ""
    if not issubclass(value, nn.Module):
        return "a class that is neither an autograd.Function nor an nn.Module"
    return "" if init else "an nn.Module: say with `init:` how it is built (`init: {}` for no arguments)"


def uses_setup_context(function: type[Function]) -> bool:
    """Whether forward has no `ctx` because `setup_context` gets it."""
    return function.setup_context is not Function.setup_context


def is_old_style(function: type[Function]) -> bool:
    """Whether forward or backward lacks `@staticmethod`; a `@classmethod` is none, and nothing is wrong."""
    return any(
        not isinstance(inspect.getattr_static(function, name), staticmethod | classmethod)
        for name in ("forward", backward_name(function))
    )


def backward_name(function: type[Function]) -> str:
    """`backward`, or `vjp` where the class defines that instead."""
    return "vjp" if function.vjp is not Function.vjp else "backward"


def _is_function_class(value: type) -> bool:
    return issubclass(value, Function) and value is not Function


def _reason_to_pass_over(value: type[Function], module: ModuleType) -> str:
    if value.__module__ != module.__name__:
        return f"imported from {value.__module__}"
    if value.forward is Function.forward:
        return "an abstract base: it has no forward"
    has_backward = value.backward is not Function.backward or value.vjp is not Function.vjp
    heirs = [c.__name__ for c in value.__subclasses__() if c.__module__ == module.__name__]
    if not has_backward:
        return (
            f"an abstract base of {', '.join(heirs)}: it has no backward" if heirs else "it has no backward"
        )
    missing = next(_missing(value), "") if heirs else ""
    return f"an abstract base of {', '.join(heirs)}: {missing}" if missing else ""


def _missing(value: type[Function]) -> Iterator[str]:
    """What a class leaves to its heirs: a method that only raises."""
    for method in (value.forward, getattr(value, backward_name(value))):
        body = Method.of(method)
        if body is not None and body.only_raises == NotImplementedError.__name__:
            yield f"its {body.name} only raises NotImplementedError"


def _class_statements(value: type[Function]) -> set[str]:
    """Qualified name of the class statement with both forward and backward; none where two have one each.

    The class may have been given another name since, or be a base of the one that is verified.
    """
    methods = (value.forward, getattr(value, backward_name(value)))
    forward, backward = (getattr(m, "__qualname__", "").rpartition(".")[0] for m in methods)
    return {forward} if forward == backward else set()


def _by_line(passed: PassedOver) -> tuple[int, str]:
    return passed.line, passed.name
