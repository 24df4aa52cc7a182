"""Kernels in their XLA form are tested on the CPU only, whatever the machine has."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
