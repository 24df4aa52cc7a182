"""Data preparation: documents in, one verified file of fixed token rows out."""

from runtime.run.data.prepare import SampleFileInfo, prepare_data

__all__ = ["SampleFileInfo", "prepare_data"]
