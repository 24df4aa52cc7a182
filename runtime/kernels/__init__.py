"""The kernels of the `luma::` ops: a folder each, with its contract and its plain reference.

`contract.py` says what the op promises (shapes, dtypes, meaning) without importing an array
library; `reference.py` computes it in torch, for capture's gradient check and for tests; the other
modules compute it on a target.
"""
