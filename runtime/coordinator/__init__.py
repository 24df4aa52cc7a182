"""The coordinator: membership, shard leases and the commit log of one run.

The protocol, in the order of one step `t`:

1. Every island holds the state after `t` applied steps. The coordinator leases micro-shards of
   step `t` to islands (`lease`), by measured seconds a shard; an island answers `done`.
2. When all micro-shards are done, `reduce` names which island contributes which shards. The
   islands add their integer sums over their own ring and answer `summed` with a hash.
3. When every live island holds the same sum, the coordinator appends the commit to its log, and
   only then sends `commit`. The islands apply the step and answer `applied`.

What survives a crash: an island that dies takes at most its own shards of the step in flight with
it; the survivors keep theirs. The coordinator can be killed at any point: the islands keep their
sums, reconnect and say what they hold, and the log decides whether the step was committed. When
all die, the run goes on from the last durable checkpoint, and each recomputed step must give the
hash that the log holds.

No module of this package imports torch or jax: the coordinator starts in a fraction of a second.
"""
