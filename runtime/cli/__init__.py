"""The `luma` command: thin, one module a group of commands; what they do lives below it."""

from __future__ import annotations

from runtime.cli.app import main

__all__ = ["main"]
