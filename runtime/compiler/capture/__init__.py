"""Capture: from a torch model to a graph package. The only part of the compiler that uses torch."""

from runtime.compiler.capture._adapter import AdapterOptions, apply_adapter
from runtime.compiler.capture._capture import CapturedModel, capture, model_arrays
from runtime.compiler.capture._check import GradientCheck, eager_loss
from runtime.compiler.capture.interpret import run_graph
from runtime.compiler.capture.sources import LoadedModel, load_model

__all__ = [
    "AdapterOptions",
    "CapturedModel",
    "GradientCheck",
    "LoadedModel",
    "apply_adapter",
    "capture",
    "eager_loss",
    "load_model",
    "model_arrays",
    "run_graph",
]
