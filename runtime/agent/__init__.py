"""What runs on a node: load, train, checkpoint, notice a reclaim.

`python -m runtime.agent` ends with one of `runtime.agent.exit_codes.ExitCode`: 0 done or left, 1
the run failed, 3 an error that every island would meet, 4 this island crashed, 5 no coordinator
answered, 6 refused. After 4 and 5 (and after any signal) another island may take its place.
"""
