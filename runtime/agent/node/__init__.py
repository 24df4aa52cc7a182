"""The node daemon: takes work from its fleet's queue and does it, until it is told to leave.

    python -m runtime.agent.node        LUMA_STACK, LUMA_FLEET and AWS_REGION say where it belongs

1. It reads the stack's parameters, and its own identity from the instance's metadata (IMDSv2).
2. It takes one message from the queue of its fleet, calls SendTaskHeartbeat with the message's
   token at once, and only then deletes the message: whoever dies before leaves it to another node,
   and a token that nobody waits for any more is dropped with its message.
3. It does the work (an island, the coordinator, an export, a compile) in processes of its own and a
   scratch folder, with heartbeats from a thread, and answers the token once.
4. On a notice (spot interruption, rebalance recommendation, a target lifecycle state of Terminated,
   SIGTERM) it has its island leave, answers `Luma.Interrupted`, and ends.

What survives a crash at any moment: everything that counts. The commit log and the events are in
the table, checkpoints and logs in the bucket; the state machine hears no heartbeat and gives the
work to another node. A message that is delivered twice is worked on twice, and the second answer is
refused by Step Functions.

`core` decides, without I/O; `daemon` is the loop around it.
"""
