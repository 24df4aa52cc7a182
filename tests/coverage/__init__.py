"""Coverage of the compiler: every causal-LM architecture of transformers, captured, compiled, run.

`python -m tests.coverage` builds a tiny random model of each and takes it all the way: capture,
gradients against eager, compilation for CPU, one step of the compiled program against eager. It
writes `docs/coverage.json` and `docs/coverage.md`.
"""
