"""Cases of softmax, layer norms and the negative log-likelihood."""

from __future__ import annotations

from typing import Any

import torch

from tests.unit.lower.support import FLOATS, HALVES, Case, Draw

_CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


def _softmax(d: Draw, *dtypes: torch.dtype) -> Any:
    shape = d.shape()
    x = d.tensor(shape, *(dtypes or FLOATS), edges=False)
    if x.numel() > 1 and d.pick(True, False):
        x.view(-1)[0] = d.pick(-torch.inf, torch.nan, 80.0)
    return (x, d.dim(shape), False), {}


def _softmax_backward(name: str) -> Any:
    def draw(d: Draw) -> Any:
        (x, dim, _), _ = _softmax(d)
        x = torch.nan_to_num(x.float(), neginf=-9.0)
        y = getattr(torch.ops.aten, name).default(x, dim, False)
        return (d.tensor(x.shape, edges=False), y, dim, torch.float32), {}

    return draw


_NORM_SHAPES = (((2, 3, 4), [4]), ((2, 3, 4), [3, 4]), ((5,), [5]), ((0, 3), [3]))


def _layer_norm(d: Draw) -> Any:
    shape, inner = d.pick(*_NORM_SHAPES)
    weight = d.pick(None, d.tensor(inner, edges=False))
    bias = d.pick(None, d.tensor(inner, edges=False))
    return (d.tensor(shape, edges=False), inner, weight, bias, 1e-5), {}


def _layer_norm_backward(d: Draw) -> Any:
    (x, inner, weight, bias, eps), _ = _layer_norm(d)
    y, mean, rstd = torch.ops.aten.native_layer_norm.default(x, inner, weight, bias, eps)
    mask = [d.pick(True, False), weight is not None and d.pick(True, False), bias is not None]
    return (d.tensor(y.shape, edges=False), x, inner, mean, rstd, weight, bias, mask), {}


def _nll(d: Draw) -> Any:
    tokens = d.pick((6,), (1,), ())
    x = d.tensor((*tokens, 5), low=-9.0, high=0.0, edges=False)
    target = d.index(tokens, 5)
    if d.pick(True, False):
        target = torch.where(d.tensor(tokens, torch.bool), torch.full_like(target, -100), target)
    weight = d.pick(None, d.tensor((5,), low=0.1, high=2.0, edges=False))
    return (x, target, weight, d.pick(0, 1, 2), -100), {}


def _nll_backward(d: Draw) -> Any:
    args, _ = _nll(d)
    loss, total = torch.ops.aten.nll_loss_forward.default(*args)
    total = torch.where(total == 0, torch.ones_like(total), total)
    return (d.tensor(loss.shape, edges=False), *args, total), {}


CASES = [
    Case("aten._softmax.default", lambda d: _softmax(d, *FLOATS, *HALVES), **_CLOSE),
    Case("aten._log_softmax.default", _softmax, **_CLOSE),
    Case("aten._softmax_backward_data.default", _softmax_backward("_softmax"), **_CLOSE),
    Case("aten._log_softmax_backward_data.default", _softmax_backward("_log_softmax"), **_CLOSE),
    Case("aten.native_layer_norm.default", _layer_norm, rtol=1e-4, atol=1e-5),
    Case("aten.native_layer_norm_backward.default", _layer_norm_backward, rtol=1e-4, atol=1e-4),
    Case("aten.nll_loss_forward.default", _nll, **_CLOSE),
    Case("aten.nll_loss_backward.default", _nll_backward, **_CLOSE),
]
