"""Watches over a gateway on its instance: leaves on a notice, reports load. Standard library alone.

    serve_watch.py --port N --region REGION --target-group ARN --service NAME

Every five seconds it asks the instance's metadata (IMDSv2) for a notice: a spot interruption, a
rebalance recommendation, or an Auto Scaling group that ends the instance. On the first one it takes
the instance out of the load balancer and stops the gateway, which refuses new requests and lets those
in flight end. Every half minute it reports the requests in flight as the metric `InFlight`, by which
the group is scaled.

AWS is asked by the AWS CLI. AWS_EC2_METADATA_SERVICE_ENDPOINT names another metadata service.
"""

# ruff: noqa: INP001 (a script of the instance, no module of the package)

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence

METADATA = "http://169.254.169.254"
NAMESPACE = "Luma"
METRIC = "InFlight"
_TIMEOUT_S = 2.0
_EVERY_S = 5.0
_REPORT_S = 30.0
_IN_FLIGHT = re.compile(r"^luma_serve_in_flight (\S+)$", re.MULTILINE)
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def notice(endpoint: str) -> str | None:
    """Give the notice that this instance has, None without one.

    Args:
        endpoint: URL of the metadata service.

    Raises:
        OSError: the service does not answer.
    """
    token = _ask(
        endpoint, "latest/api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    )
    header = {"X-aws-ec2-metadata-token": token or ""}
    meta = "latest/meta-data"
    for kind in ("spot/instance-action", "events/recommendations/rebalance"):
        if _ask(endpoint, f"{meta}/{kind}", "GET", header) is not None:
            return kind
    state = _ask(endpoint, f"{meta}/autoscaling/target-lifecycle-state", "GET", header)
    return "autoscaling/target-lifecycle-state" if state == "Terminated" else None


def instance_id(endpoint: str) -> str:
    """Give this instance's id.

    Raises:
        OSError: the service does not answer.
    """
    token = _ask(
        endpoint, "latest/api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    )
    header = {"X-aws-ec2-metadata-token": token or ""}
    found = _ask(endpoint, "latest/meta-data/instance-id", "GET", header)
    if not found:
        raise OSError("the metadata service names no instance")
    return found


def in_flight(port: int) -> float | None:
    """Give the gateway's requests in flight, None where it does not answer."""
    try:
        text = _ask(f"http://127.0.0.1:{port}", "metrics", "GET", {})
    except OSError:
        return None
    found = _IN_FLIGHT.search(text or "")
    return None if found is None else float(found[1])


def leave(
    instance: str, region: str, target_group: str, run: Callable[[Sequence[str]], int]
) -> int:
    """Take the instance out of the load balancer, then stop the gateway; give the worse status.

    The gateway is stopped in any case: its readiness tells the load balancer too.
    """
    target = ["--target-group-arn", target_group, "--targets", f"Id={instance}"]
    out = run(["aws", "elbv2", "deregister-targets", "--region", region, *target])
    stopped = run(["systemctl", "stop", "luma-serve.service"])
    return max(out, stopped)


def report(load: float, service: str, region: str, run: Callable[[Sequence[str]], int]) -> int:
    """Report the requests in flight of this instance."""
    return run(
        [
            "aws", "cloudwatch", "put-metric-data", "--region", region,
            "--namespace", NAMESPACE, "--metric-name", METRIC, "--unit", "Count",
            "--dimensions", f"Service={service}", "--value", f"{load:g}",
        ]
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None, *, every_s: float = _EVERY_S) -> int:
    """Watch until a notice; give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--region", required=True)
    parser.add_argument("--target-group", required=True)
    parser.add_argument("--service", required=True)
    options = parser.parse_args(arguments)
    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", METADATA).rstrip("/")
    instance = instance_id(endpoint)
    reported = -_REPORT_S
    while True:
        try:
            found = notice(endpoint)
        except OSError as error:
            _say(f"no answer of the metadata service: {error}")
            found = None
        if found is not None:
            _say(f"{found}: leaving")
            return leave(instance, options.region, options.target_group, _run)
        if time.monotonic() - reported >= _REPORT_S:
            reported = time.monotonic()
            load = in_flight(options.port)
            if load is not None:
                report(load, options.service, options.region, _run)
        time.sleep(every_s)


def _ask(base: str, path: str, method: str, headers: dict[str, str]) -> str | None:
    """Give an answer's text, None for 404."""
    request = urllib.request.Request(f"{base}/{path}", method=method, headers=headers)  # noqa: S310
    try:
        with _OPENER.open(request, timeout=_TIMEOUT_S) as answer:
            return answer.read(1 << 20).decode()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def _run(command: Sequence[str]) -> int:
    """Run a command; a failure is said and does not end the watch."""
    done = subprocess.run(command, check=False, timeout=120)
    if done.returncode:
        _say(f"{' '.join(command[:3])}: exit status {done.returncode}")
    return done.returncode


def _say(text: str) -> None:
    print(f"luma-serve-watch: {text}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
