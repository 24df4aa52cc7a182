"""Values of traced tensors that follow from no input: they can be read while tracing.

Model code reads back tensors that it made from sizes alone (`torch.tensor([seq_len] * 2).max()
.item()`). Fake tensors have no values, but the traced graph tells how such a one was made: if no
input is among its ancestors, running these few nodes gives its values.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    get_proxy_slot,
)


def known_value(x: object) -> Tensor | None:
    """Give a traced tensor's values, or None where they depend on an input or are being changed."""
    mode = get_proxy_mode()
    if mode is None or not isinstance(x, FakeTensor):
        return None
    slot = get_proxy_slot(x, mode.tracer, None)
    node = getattr(getattr(slot, "proxy", None), "node", None)
    if not isinstance(node, fx.Node):
        return None
    ancestors = _ancestors(node)
    if ancestors is None or _changed(ancestors):
        return None
    with disable_proxy_modes_tracing(), unset_fake_temporarily(), torch.no_grad():
        return _evaluated(node, getattr(mode.tracer, "root", None))


def _ancestors(node: fx.Node) -> set[fx.Node] | None:
    """Give a node and all that it follows from, or None where an input is among them."""
    found: set[fx.Node] = set()
    pending = [node]
    while pending:
        item = pending.pop()
        if item in found:
            continue
        if item.op not in ("call_function", "get_attr") or _is_random(item):
            return None
        found.add(item)
        pending.extend(item.all_input_nodes)
    return found


def _is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _changed(ancestors: set[fx.Node]) -> bool:
    """Tell whether an in-place op works on one of them, or on a view of one.

    The traced graph names the tensor by the op that changed it, but not a tensor that was changed
    through its view.
    """
    return any(
        user not in ancestors and _changes(user) for node in ancestors for user in _uses(node)
    )


def _uses(node: fx.Node) -> set[fx.Node]:
    """Give what uses a node, directly or through views."""
    found: set[fx.Node] = set()
    pending = [node]
    while pending:
        for user in pending.pop().users:
            if user in found:
                continue
            found.add(user)
            if _gives_a_view(user):
                pending.append(user)
    return found


def _changes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _gives_a_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(result.alias_info for result in schema.returns)


def _evaluated(node: fx.Node, root: torch.nn.Module | None) -> Tensor | None:
    """Run a node and what it follows from; constants are attributes of `root`."""
    values: dict[fx.Node, Any] = {}
    pending = [node]
    while pending:
        item = pending[-1]
        missing = [before for before in item.all_input_nodes if before not in values]
        if missing:
            pending.extend(missing)
            continue
        pending.pop()
        if item.op == "get_attr":
            # A copy: an op that follows may change it.
            values[item] = operator.attrgetter(str(item.target))(root).clone()
        elif item not in values:
            function: Any = item.target
            args, kwargs = (
                fx.node.map_arg(a, values.__getitem__) for a in (item.args, item.kwargs)
            )
            values[item] = function(*args, **kwargs)
    found = values[node]
    return found if isinstance(found, Tensor) and not isinstance(found, FakeTensor) else None
