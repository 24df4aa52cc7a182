"""Runs in an AWS account: prepare and upload, start, follow, stop, and say what costs money.

Nothing here talks to AWS unless a user named an account: by `resources.infra: aws/REGION` in the job,
or by `--stack`. A run's preparation is local: the model is captured, the data are tokenised and the
initial weights are written on the user's machine, then they go into the user's own bucket.
"""
