"""Where an island stands: on one machine with its coordinator, or on a node of an account."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.coordinator.tls import RunTls


@dataclass(frozen=True, kw_only=True, slots=True)
class IslandSettings:
    """What differs between places, and nothing that changes a bit of the result.

    Attributes:
        host: address to listen on for other islands, and to tell them.
        tls: secures every connection; None on a machine of its own.
        store: `s3://BUCKET/PREFIX` of the run, for its checkpoints; None keeps them in the folder.
        patience_s: how long to look for a coordinator before giving up, in seconds. In an account
            a new one may first need an instance.
    """

    host: str = "127.0.0.1"
    tls: RunTls | None = None
    store: str | None = None
    patience_s: float = 60.0


LOCAL = IslandSettings()
