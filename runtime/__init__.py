"""Luma: the runtime. One package a part; the arrows between them are in `pyproject.toml`."""
