"""What the names of a file hold, as far as its own code shows: tensors, sequences, iterators, counters.

Debug code that runs though no switch is set may only look. Whether `list(x)`, `x[key]` or `x.half()` looks depends on
what `x` is: an iterator is used up, a defaultdict grows, a module is converted. Where nothing shows what a name
holds, it may be any of these.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from specwire.strip.binds import FUNCTIONS

# What the engine's code means by these names, wherever they stand.
_TENSORS = frozenset(
    "hidden_states aux_hidden_states hidden_state aux_hidden_state residual input_ids positions logits embeds "
    "input_embeds weight bias data grad next_token_logits token_ids output_ids draft_token draft_tokens".split()
)
_SEQUENCES = _TENSORS | frozenset(
    "shape layers_to_capture layer_ids reqs seq_lens seq_lens_cpu seq_lens_sum extend_seq_lens extend_seq_lens_cpu "
    "accept_lens accept_length accept_index environ argv args kwargs T".split()
)
# Reading one of these of a name shows what it holds: no iterator, mapping or module has them.
_OF_TENSORS = frozenset(
    "shape ndim dim norm mean std numel flatten view reshape tolist item abs sum max min isnan isinf isfinite detach "
    "stride is_cuda unsqueeze squeeze contiguous size argmax topk index_select element_size is_contiguous amax amin".split()
)
_OF_SEQUENCES = _OF_TENSORS | frozenset(
    "append extend insert index count copy sort split startswith endswith lower upper keys values items setdefault "
    "update".split()
)
_OF_MAPPINGS = frozenset("keys values items get setdefault update".split())
_GROWING = frozenset(("defaultdict", "WeakKeyDictionary", "WeakValueDictionary"))
_LAZY = frozenset("iter map filter zip enumerate reversed open".split())
_CONSUMERS = frozenset(
    "list tuple sorted set frozenset sum min max any all dict enumerate zip bytes map filter reversed deque Counter "
    "OrderedDict stack cat tensor as_tensor array asarray join".split()
)
_DISPLAYS = (
    ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp,
    ast.Compare, ast.BinOp, ast.UnaryOp, ast.GeneratorExp, ast.AugAssign,
)  # fmt: skip
_LISTS = (ast.List, ast.Tuple, ast.ListComp, ast.JoinedStr, ast.BinOp, ast.Dict, ast.DictComp)

Key = tuple[int, str]


@dataclass(frozen=True)
class Evidence:
    """Keys: (the outermost function around or 0, name); for attributes (id of the class, `.name`) of what is `self`, and
    (-1, `.name`) of anything."""

    homes: dict[int, int] = field(default_factory=dict)  # id of a name's node -> the outermost function around it
    uses: dict[Key, set[str]] = field(
        default_factory=dict
    )  # attributes that are read of it, `[0]`, `[:]`, `len()`, `()`
    values: dict[Key, list[ast.AST | None]] = field(default_factory=dict)  # all that is bound to it; None: not known
    generators: frozenset[str] = frozenset()  # functions of the file that yield
    outer: set[Key] = field(default_factory=set)  # names that a function declares to be the module's

    def uses_up(self, node: ast.expr, lenient: bool = False) -> bool:
        """Whether walking over this could use up something that others walk over, too."""
        return not self._sequence(node, lenient, frozenset())

    def inserts(self, node: ast.Subscript) -> bool:
        """Whether reading this item could add it, as with a defaultdict."""
        holder = node.value
        if isinstance(holder, ast.Subscript):
            return self.inserts(holder)
        if not isinstance(holder, (ast.Name, ast.Attribute)) or _name(holder) in _SEQUENCES:
            return False
        uses, values = self._of(holder)
        if uses & _OF_TENSORS or "[:]" in uses or "Tensor" in uses or "List" in uses:
            return False
        if values and all(isinstance(value, _LISTS) for value in values):
            return False
        made = {_name(value.func) for value in values if isinstance(value, ast.Call)}
        return bool(uses & _OF_MAPPINGS or made & _GROWING) or not _counts(node.slice)

    def is_tensor(self, node: ast.expr) -> bool:
        """Whether something shows that this is a tensor, and no module."""
        if isinstance(node, (ast.Call, ast.BinOp)):
            return True  # what a call that only looks gives is nobody's
        if isinstance(node, ast.Subscript):
            return self.is_tensor(node.value)
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return False
        uses, _ = self._of(node)
        return _name(node) in _TENSORS or "Tensor" in uses or ("()" not in uses and bool(uses & _OF_TENSORS))

    def counts(self, target: ast.expr) -> bool:
        """Whether `+=` on this gives a new object each time, or changes one that only this name stands for."""
        if not isinstance(target, (ast.Name, ast.Attribute)):
            return False
        _, values = self._of(target)
        first = [value for value in values if not isinstance(value, ast.AugAssign)]
        return bool(first) and all(value is not None and _own_number(value) for value in values)

    def made_here(self, node: ast.Name) -> bool:
        """Whether a function's own name stands for nothing but empty displays, which nobody else has."""
        key = self.key(node)
        values = self.values.get(key, [])
        return key[0] != 0 and bool(values) and all(isinstance(value, (ast.List, ast.Set)) for value in values)

    def _of(self, node: ast.Name | ast.Attribute) -> tuple[set[str], list[ast.AST | None]]:
        key = self.key(node)
        if key not in self.values and isinstance(node, ast.Name):
            outer = (0, node.id)
            return self.uses.get(key, set()) | self.uses.get(outer, set()), self.values.get(outer, [])
        return self.uses.get(key, set()), self.values.get(key, [])

    def key(self, node: ast.Name | ast.Attribute) -> Key:
        if isinstance(node, ast.Attribute):
            own = self.homes.get(id(node), -1), "." + node.attr
            return own if own in self.values else (-1, "." + node.attr)
        key = self.homes.get(id(node), 0), node.id
        return (0, node.id) if key in self.outer else key

    def _sequence(self, node: ast.AST, lenient: bool, seen: frozenset[Key]) -> bool:
        if isinstance(node, _DISPLAYS):
            return True
        if isinstance(node, (ast.Starred, ast.NamedExpr)):
            return self._sequence(node.value, lenient, seen)
        if isinstance(node, ast.IfExp):
            return self._sequence(node.body, lenient, seen) and self._sequence(node.orelse, lenient, seen)
        if isinstance(node, ast.BoolOp):
            return all(self._sequence(value, lenient, seen) for value in node.values)
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in _LAZY:
                return all(self._sequence(argument, lenient, seen) for argument in node.args)
            return True  # walking over what a call has just made takes nothing from anybody
        if isinstance(node, ast.Subscript):
            return isinstance(node.slice, ast.Slice) or self.is_tensor(node.value)
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return False
        if _name(node) in _SEQUENCES:
            return True
        key = self.key(node)
        if key in seen:
            return True
        uses, values = self._of(node)
        if any(value is not None and self._is_lazy(value) for value in values):
            return False
        if uses & _OF_SEQUENCES or uses & {"[:]", "[0]", "len()", "Tensor", "List"}:
            return True
        if not values:
            return lenient or isinstance(node, ast.Attribute)
        return all(
            lenient if value is None else self._made_here(value) and self._sequence(value, lenient, seen | {key})
            for value in values
        )

    def _is_lazy(self, value: ast.AST) -> bool:
        if isinstance(value, ast.GeneratorExp):
            return True
        return isinstance(value, ast.Call) and _name(value.func) in (_LAZY | self.generators)

    def _made_here(self, value: ast.AST) -> bool:
        """Not by a call of something that could hand on a stored iterator."""
        if not isinstance(value, ast.Call):
            return True
        name = _name(value.func)
        return name in _CONSUMERS or name in ("range", "ModuleList", "split") or name in _OF_TENSORS


def gather(tree: ast.Module) -> Evidence:
    """Read off a file's syntax tree what its names hold."""
    known = Evidence(generators=frozenset(_generators(tree)))
    stack: list[tuple[ast.AST, int, int]] = [(tree, 0, -1)]
    while stack:
        node, home, owner = stack.pop()
        if isinstance(node, (ast.Name, ast.arg)):
            known.homes[id(node)] = home
        elif isinstance(node, ast.Attribute):
            known.homes[id(node)] = owner if getattr(node.value, "id", "") == "self" else -1
        elif isinstance(node, ast.Global):
            known.outer.update((home, name) for name in node.names)
        inner = home or id(node) if isinstance(node, FUNCTIONS) else home
        owner = id(node) if isinstance(node, ast.ClassDef) else owner
        stack.extend((child, inner, owner) for child in ast.iter_child_nodes(node))
    for node in ast.walk(tree):
        for target, value in _bound(node):
            for key in _keys(known, target):
                known.values.setdefault(key, []).append(value)
    for node in ast.walk(tree):
        for holder, what in _used(node):
            for key in {known.key(holder), *_keys(known, holder)}:
                known.uses.setdefault(key, set()).add(what)
    for part in ast.walk(tree):
        if isinstance(part, ast.arguments):
            for argument, value, kinds in _parameters(part):
                key = known.homes.get(id(argument), 0), argument.arg
                known.values.setdefault(key, []).append(value)
                known.uses.setdefault(key, set()).update(kinds)
        elif isinstance(part, ast.ClassDef):
            for statement in part.body:
                for target, value in _bound(statement):
                    if isinstance(target, ast.Name):
                        known.values.setdefault((-1, "." + target.id), []).append(value)
                        known.values.setdefault((id(owner), "." + target.id), []).append(value)
    return known


def consumed(node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """What evaluating a node walks over, and whether it merely asks if something is in it."""
    if isinstance(node, ast.Call) and _name(node.func) in _CONSUMERS:
        single = _name(node.func) in ("min", "max") and len(node.args) > 1
        for argument in () if single else node.args:
            yield argument, False
    elif isinstance(node, ast.Starred):
        yield node.value, False
    elif isinstance(node, ast.comprehension):
        yield node.iter, False
    elif isinstance(node, ast.Compare):
        for how, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(how, (ast.In, ast.NotIn)):
                yield right, True


def shows_tensor(attribute: str) -> bool:
    """Whether something that this is read of must be a tensor."""
    return attribute in _OF_TENSORS


def _used(node: ast.AST) -> Iterator[tuple[ast.Name | ast.Attribute, str]]:
    if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
        yield node.value, node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.value, (ast.Name, ast.Attribute)):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        yield node.value, "[:]" if any(isinstance(part, ast.Slice) for part in parts) else "[0]"
    elif isinstance(node, ast.Call):
        if isinstance(node.func, (ast.Name, ast.Attribute)):
            yield node.func, "()"
        if isinstance(node.func, ast.Name) and node.func.id == "len" and node.args:
            if isinstance(node.args[0], (ast.Name, ast.Attribute)):
                yield node.args[0], "len()"


def _bound(node: ast.AST) -> Iterator[tuple[ast.expr, ast.AST | None]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            single = isinstance(target, (ast.Name, ast.Attribute))
            yield target, node.value if single else None
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.AugAssign):
        yield node.target, node  # `_own_number` looks at what is added
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield node.target, None
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, None


def _keys(known: Evidence, target: ast.expr) -> Iterator[Key]:
    if isinstance(target, ast.Name):
        yield known.key(target)
    elif isinstance(target, ast.Attribute):
        yield from {(known.homes.get(id(target), -1), "." + target.attr), (-1, "." + target.attr)}
    elif isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from _keys(known, element)
    elif isinstance(target, ast.Starred):
        yield from _keys(known, target.value)


def _parameters(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.AST | None, set[str]]]:
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        text = ast.unparse(argument.annotation).lower() if argument.annotation is not None else ""
        yield argument, None, {kind for kind in ("Tensor", "List") if kind.lower() in text}
    if arguments.vararg is not None:
        yield arguments.vararg, ast.Tuple([], ast.Load()), set()
    if arguments.kwarg is not None:
        yield arguments.kwarg, ast.Dict([], []), set()


def _generators(tree: ast.Module) -> Iterator[str]:
    for function in ast.walk(tree):
        if isinstance(function, FUNCTIONS) and any(
            isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(function)
        ):
            yield function.name


def _own_number(value: ast.AST) -> bool:
    """A value that `+=` does not change in place where others could see it."""
    if isinstance(value, ast.AugAssign):
        return True  # what it was before decides
    if isinstance(value, (ast.List, ast.Dict, ast.Set)):
        return True
    if isinstance(value, ast.Call) and _name(value.func) == "getattr" and len(value.args) == 3:
        return isinstance(value.args[2], ast.Constant)
    return isinstance(value, (ast.Constant, ast.Compare, ast.BinOp)) or (
        isinstance(value, ast.UnaryOp) and isinstance(value.operand, ast.Constant)
    )


def _counts(key: ast.expr) -> bool:
    """An index such as a sequence takes."""
    if isinstance(key, ast.Tuple):
        return any(isinstance(part, ast.Slice) for part in key.elts) and all(map(_counts, key.elts))
    if isinstance(key, ast.Slice):
        return True
    if isinstance(key, ast.UnaryOp):
        return _counts(key.operand)
    if isinstance(key, ast.BinOp):
        return _counts(key.left) and _counts(key.right)
    if isinstance(key, ast.Name):
        return key.id in ("i", "j", "idx", "index", "row", "rank", "layer_id", "slot")
    return isinstance(key, ast.Constant) and isinstance(key.value, int)


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
