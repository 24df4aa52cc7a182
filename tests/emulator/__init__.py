"""An AWS account emulated on this machine, for tests of what is deployed into one.

A moto server in a process of its own takes the real CDK CLI and executes the real state machines;
instances are real processes. Where moto lacks something, it is added to that server from AWS's
documentation, never from what our machines expect:

- `serve` is that process, `bridge`, `executions`, `capacity`, `commands`, `state_events` are what is
  added inside it, `control` and `faults` how a test reaches in;
- `server` starts it and is the client's side; `node` and `cdk` call the CDK CLI;
- `imds`, `players` and `events` play instances, their metadata and what AWS sends;
- `account` joins all of it.

What no emulator checks (permissions, key policies, quotas, real capacity, timing of spot) is
asserted on the template elsewhere, or stays unverified.
"""
