"""Serving a checkpoint: `serve`, one OpenAI-compatible gateway in front of an inference engine."""

from runtime.serve.checkpoint import find_checkpoint
from runtime.serve.limits import Limits
from runtime.serve.server import serve

__all__ = ["Limits", "find_checkpoint", "serve"]
