"""`make emulate`: a whole deployment and a training job with interruptions in an emulated account.

What is real: the CDK CLI and its bootstrap, the template, the state machines (run by moto's
interpreter), the nodes' processes from the deployed archive, the compiler, coordinator and islands,
the data in S3 and DynamoDB of the emulator. What is played: instances, their metadata, and AWS's
capacity (`tests.emulator`). Nothing here has run in AWS.
"""
