"""Makes one loop of a window: a body, and what surrounds it.

Each operand of an iteration is one of: the same literal, an integer affine in the iteration (where
an op takes one as an index), a value of the same iteration, a value of an earlier iteration (a
carry), the same value from outside (an invariant), or one of a list of outside values. A list whose
members are equal views of values that fit in turn is computed inside the body; with
`Scope.stacking` any other list of equal types is copied into one array outside and read by place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from runtime.compiler.graph import Affine, DType, Node, Ref, TensorType, Value
from runtime.compiler.passes.reroll._leaves import VIEWS, is_index, leaves, token, with_leaves
from runtime.compiler.passes.reroll._scope import Scope, UnfitError, node_refs
from runtime.compiler.passes.reroll._window import Window, longest, origin


class NarrowerError(Exception):
    """Only some iterations, those of `window`, are alike."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self.window = window


@dataclass(slots=True)
class Carry:
    """A value handed on: its name in the body, the outside name before, the body's name after."""

    name: str
    first: str
    following: str


@dataclass(slots=True)
class Loop:
    """A loop that stands for the nodes of a window.

    Attributes:
        window: what it replaces.
        before: nodes outside it that it needs, in order.
        carries: values handed from iteration to iteration.
        invariants: names in the body of outside values, by outside name.
        nodes: the body's.
        final: the outside name of a carry's value after the last iteration, by its body name.
        kept: names in the body of values of which every iteration's is needed outside, with
            (iteration, outside name) of those that are.
        renamed: what stands for values that are the same in every iteration.
        copies: whether `before` copies values together that lie apart.
    """

    window: Window
    before: list[Node] = field(default_factory=list)
    carries: list[Carry] = field(default_factory=list)
    invariants: dict[str, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    final: dict[str, str] = field(default_factory=dict)
    kept: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    copies: bool = False


def build_loop(scope: Scope, window: Window) -> Loop:
    """Make the loop.

    Raises:
        UnfitError: an operand is none of what a loop can express.
        NarrowerError: it would be one with fewer iterations.
    """
    return _Builder(scope, window).build()


class _Builder:
    """Builds one loop; body names are numbered, so equal loops have equal bodies."""

    def __init__(self, scope: Scope, window: Window) -> None:
        self._scope = scope
        self._window = window
        self._loop = Loop(window)
        self._local: dict[int, str] = {}
        self._registers: dict[tuple[int, tuple[str, ...]], Carry] = {}
        self._pulled: dict[tuple[str, ...], str] = {}
        # Body names of values that are views of outside values, so nothing need keep them.
        self._free: set[str] = set()
        self._hoisted: set[int] = set()

    def build(self) -> Loop:
        for place in range(self._window.period):
            self._add(place)
        for (place, first), carry in self._registers.items():
            newer = self._registers.get((place, first[:-1]))
            carry.following = self._local[place] if newer is None else newer.name
        self._give_out()
        return self._loop

    def _add(self, place: int) -> None:
        """Add the node at a place of every iteration to the body, or outside it."""
        window = self._window
        nodes = [window.node(self._scope, i, place) for i in range(window.count)]
        values = self._operands(nodes)
        if not any(self._varies(value) for value in values):
            self._loop.before.append(nodes[0])
            self._hoisted.add(place)
            self._local[place] = self._invariant(nodes[0].name)
            return
        self._local[place] = self._emit(nodes[0], values)

    def _emit(self, model: Node, values: list[Value]) -> str:
        """Add a node like the model to the body, and give its name there."""
        name = f"n{len(self._loop.nodes)}"
        args, kwargs = with_leaves(model, values)
        self._loop.nodes.append(replace(model, name=name, args=args, kwargs=kwargs))
        used = [value.name for value in values if isinstance(value, Ref)]
        if model.op in VIEWS and self._free.issuperset(used):
            self._free.add(name)
        return name

    def _varies(self, value: Value) -> bool:
        if isinstance(value, Ref):
            return value.name not in self._loop.invariants.values()
        return isinstance(value, Affine)

    def _operands(self, nodes: Sequence[Node]) -> list[Value]:
        """Give the body's operands of equal nodes, one an iteration."""
        columns = zip(*(leaves(node) for node in nodes), strict=True)
        return [self._operand(nodes[0], i, column) for i, column in enumerate(columns)]

    def _operand(self, node: Node, leaf: int, column: tuple[Value, ...]) -> Value:
        if isinstance(column[0], Ref):
            return Ref(self._use([item.name for item in column if isinstance(item, Ref)]))
        if is_index(node, leaf):
            return self._index([item for item in column if type(item) is int], column[0])
        return column[0]

    def _index(self, values: list[int], plain: Value) -> Value:
        if len(values) < self._window.count:
            return plain
        steps = [after - before for before, after in pairwise(values)]
        first, last = longest(steps)
        self._require(first, last + 1)
        return Affine(values[0], steps[0]) if steps[0] else values[0]

    def _require(self, first: int, last: int) -> None:
        """Go on where these are all iterations.

        Raises:
            NarrowerError: they are some; the loop may be of them alone.
        """
        if (first, last) != (0, self._window.count):
            raise NarrowerError(self._window.part(first, last))

    def _use(self, names: list[str]) -> str:
        """Give the body's name of the values that the iterations use."""
        model = origin(self._scope, self._window, len(names) - 1, names[-1])
        if model is None:
            return self._outside(tuple(names))
        age, place = model
        return self._local[place] if age == 0 else self._carried(place, names[:age])

    def _carried(self, place: int, first: list[str]) -> str:
        """Give the register with the value of as many iterations before as there are first ones."""
        value = self._window.node(self._scope, 0, place)
        if not isinstance(value.out, TensorType):
            raise UnfitError(f"'{value.name}' is no single tensor")
        for name in first:
            known = self._scope.position.get(name, -1)
            if self._scope.types[name] != value.out or known >= self._window.start:
                # Without its first iteration the loop may start from values of the right type.
                raise NarrowerError(self._window.part(1, self._window.count))
        # Register j holds the value of j iterations before, so its first value is the j-th newest.
        newest = tuple(reversed(first))
        for age in range(1, len(newest) + 1):
            if (place, newest[:age]) not in self._registers:
                self._registers[place, newest[:age]] = self._carry(newest[age - 1])
        return self._registers[place, newest].name

    def _carry(self, first: str) -> Carry:
        carry = Carry(f"c{len(self._loop.carries)}", first, "")
        self._loop.carries.append(carry)
        return carry

    def _invariant(self, name: str) -> str:
        known = self._loop.invariants
        local = known.setdefault(name, f"v{len(known)}")
        self._free.add(local)
        return local

    def _outside(self, names: tuple[str, ...]) -> str:
        """Give the body's name of outside values, one an iteration."""
        if len(set(names)) == 1:
            return self._invariant(names[0])
        if names not in self._pulled:
            self._pulled[names] = self._pull(names)
        return self._pulled[names]

    def _pull(self, names: tuple[str, ...]) -> str:
        nodes = [self._scope.node(name) for name in names]
        forms = [token(node) if node is not None and node.op in VIEWS else None for node in nodes]
        first, last = longest(forms)
        if forms[first] is None:
            return self._stack(names)
        self._require(first, last)
        views = [node for node in nodes if node is not None]
        return self._emit(views[0], self._operands(views))

    def _stack(self, names: tuple[str, ...]) -> str:
        """Copy a list into one array, outside, and read it by place."""
        kinds = {self._scope.types[name] for name in names}
        kind = self._scope.tensor(names[0])
        if not self._scope.stacking or len(kinds) > 1:
            raise UnfitError(f"'{names[0]}' and its like are not parts of one tensor")
        self._loop.copies = True
        name = f"stack.{self._window.node(self._scope, 0, 0).name}.{len(self._loop.before)}"
        whole = TensorType((len(names), *kind.shape), kind.dtype)
        args = (tuple(Ref(item) for item in names), 0)
        self._loop.before.append(Node(name, "aten.stack.default", args, {}, whole))
        part = Node("", "aten.select.int", (Ref(name), 0, 0), {}, kind)
        return self._emit(part, [Ref(self._invariant(name)), 0, Affine(0, 1)])

    def _give_out(self) -> None:
        """Say what is used outside: once for all iterations, only the last one's, or each one's."""
        window, scope, loop = self._window, self._scope, self._loop
        views: list[tuple[int, int]] = []
        for place in range(window.period):
            names = [window.node(scope, i, place).name for i in range(window.count)]
            used = [
                i
                for i, name in enumerate(names)
                if scope.used_outside(name, window.start, window.stop)
            ]
            local = self._local[place]
            if place in self._hoisted:
                loop.renamed.update((name, names[0]) for name in names[1:])
            elif local in self._free:
                views.extend((i, place) for i in range(window.count))
            elif used == [window.count - 1]:
                loop.final[self._last(local, place)] = names[-1]
            elif used:
                scope.tensor(names[0])
                loop.kept[local] = [(i, names[i]) for i in used]
        # A view is cheaper to take again outside than to keep for every iteration.
        loop.before.extend(window.node(scope, i, place) for i, place in sorted(views))

    def _last(self, local: str, place: int) -> str:
        """Give a carry that ends as this value."""
        for carry in self._loop.carries:
            if carry.following == local and carry.name not in self._loop.final:
                return carry.name
        kind = self._scope.tensor(self._window.node(self._scope, 0, place).name)
        name = f"start.{self._window.node(self._scope, 0, place).name}"
        kwargs: dict[str, Value] = {"dtype": DType(kind.dtype)}
        start = Node(name, "aten.full.default", (kind.shape, 0), kwargs, kind)
        self._loop.before.append(start)
        carry = self._carry(name)
        carry.following = local
        return carry.name


def outside_names(loop: Loop) -> set[str]:
    """Give the names of the values around the loop that it or its nodes outside use."""
    own = {node.name for node in loop.before}
    used = {carry.first for carry in loop.carries} | set(loop.invariants)
    used.update(name for node in loop.before for name in node_refs(node))
    return used - own
