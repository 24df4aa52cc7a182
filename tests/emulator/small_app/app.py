"""A CDK app of three resources, for what is asked of the CLI and the emulator and not of Luma."""

import aws_cdk as cdk
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_ssm as ssm
from aws_cdk import aws_stepfunctions as sfn

app = cdk.App()
stack = cdk.Stack(app, "Small", env=cdk.Environment(account="123456789012", region="us-east-1"))
queue = sqs.Queue(stack, "Queue", visibility_timeout=cdk.Duration.seconds(30))
comment = app.node.try_get_context("comment") or "first"
sfn.StateMachine(
    stack,
    "Machine",
    definition_body=sfn.DefinitionBody.from_chainable(sfn.Pass(stack, "Nothing", comment=comment)),
)
parameter = ssm.StringParameter(
    stack, "Parameter", parameter_name="/small/queue", string_value=queue.queue_url
)
parameter.node.add_dependency(queue)
cdk.CfnOutput(stack, "Url", value=queue.queue_url)
app.synth()
