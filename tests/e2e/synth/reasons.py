"""Why each role may do what it does; see roles.py.

Actions with one reason share a row of the page.
"""

from __future__ import annotations

TITLES: dict[str, str] = {
    "Fleets/NAME": "Instances of a fleet; one role for each fleet, unless it is given one.",
    "Coordinator": "The instance that coordinates runs and exports models.",
    "Compiler": "The instance that compiles.",
    "Jobs/Job": "The state machine that runs a job.",
    "Jobs/CleanUp": "The state machine that gives back what a stopped execution held.",
    "Jobs/CleanUp/Resource/EventsRole": "The rule that starts the clean-up.",
    "Failover": "The state machine that replaces an instance that is lost.",
    "Failover/Resource/EventsRole": "The rules that start it.",
    "Failover/Toeu-west-1/EventsRole": "The rule that carries a request to another region.",
    "Network/FlowLog/IAMRole": "The log of rejected traffic of a new network.",
}
"""Each role, by its construct's path in the stack, in the order of the page: what it is for."""

_STATE = (
    "a node reads and writes the items of its run and its own; the key condition leaves claims out"
)
_CHANNEL = (
    "the SSM agent keeps a channel by which the drain command comes; AWS knows no resource here"
)
_QUEUE = "a node takes its work from its fleet's queue"
_PARAMETERS = (
    "names of the bucket, table, queues and machines are read from parameters, never guessed"
)
_TOKEN = "a node answers for the work that it took; AWS limits it to this machine's tokens"
_LOGS = "Step Functions writes the machine's log; AWS knows no resource here"
_TRACES = "Step Functions traces the machine's calls; AWS knows no resource here"
_LOOK = (
    "it reads how many instances there are and what became of launches; AWS knows no resource here"
)
_CLAIMS = "states and claims are changed by conditional writes"

_ENDED = "an instance that was replaced is ended, which nothing does once it has left its group"

REASONS: dict[tuple[str, str], str] = {
    ("", "s3:GetObject"): "job, data, model, artifact and checkpoints of runs",
    ("", "s3:PutObject"): "checkpoints, logs, artifact, certificate and export of runs",
    ("", "s3:AbortMultipartUpload"): "an upload that was interrupted leaves no parts behind",
    ("", "s3:DeleteObject"): "old checkpoints are pruned; nothing else can be deleted",
    ("", "s3:ListBucket"): "without it S3 answers 403 where an object is not there yet",
    ("", "dynamodb:BatchGetItem"): _STATE,
    ("", "dynamodb:GetItem"): _STATE,
    ("", "dynamodb:Query"): _STATE,
    ("", "dynamodb:PutItem"): _STATE,
    ("", "dynamodb:UpdateItem"): _STATE,
    ("", "dynamodb:DeleteItem"): _STATE,
    ("", "dynamodb:ConditionCheckItem"): _STATE,
    ("", "sqs:ReceiveMessage"): _QUEUE,
    ("", "sqs:DeleteMessage"): _QUEUE,
    ("", "sqs:ChangeMessageVisibility"): _QUEUE,
    ("", "sqs:GetQueueAttributes"): _QUEUE,
    ("", "ssm:GetParameter"): _PARAMETERS,
    ("", "ssm:GetParameters"): _PARAMETERS,
    ("", "ssm:GetParametersByPath"): _PARAMETERS,
    ("", "ssm:UpdateInstanceInformation"): "the SSM agent registers its own instance",
    ("", "ssmmessages:CreateControlChannel"): _CHANNEL,
    ("", "ssmmessages:CreateDataChannel"): _CHANNEL,
    ("", "ssmmessages:OpenControlChannel"): _CHANNEL,
    ("", "ssmmessages:OpenDataChannel"): _CHANNEL,
    ("", "ec2messages:AcknowledgeMessage"): _CHANNEL,
    ("", "ec2messages:DeleteMessage"): _CHANNEL,
    ("", "ec2messages:FailMessage"): _CHANNEL,
    ("", "ec2messages:GetEndpoint"): _CHANNEL,
    ("", "ec2messages:GetMessages"): _CHANNEL,
    ("", "ec2messages:SendReply"): _CHANNEL,
    ("", "cloudwatch:PutMetricData"): "goodput, steps and cost, in Luma's namespace alone",
    ("", "autoscaling:CompleteLifecycleAction"): "an instance that has left is not held any longer",
    ("", "states:SendTaskSuccess"): _TOKEN,
    ("", "states:SendTaskFailure"): _TOKEN,
    ("", "states:SendTaskHeartbeat"): _TOKEN,
    ("", "states:StartExecution"): "the rule starts this one machine",
    ("", "sqs:SendMessage"): "work is given to nodes by their fleet's queue",
    ("", "sns:Publish"): "people are told how it ended",
    (
        "",
        "autoscaling:SetDesiredCapacity",
    ): "a fleet has as many instances as runs claim, none idle",
    ("", "autoscaling:DescribeAutoScalingGroups"): _LOOK,
    ("", "autoscaling:DescribeAutoScalingInstances"): _LOOK,
    ("", "autoscaling:DescribeScalingActivities"): _LOOK,
    ("", "logs:CreateLogDelivery"): _LOGS,
    ("", "logs:DeleteLogDelivery"): _LOGS,
    ("", "logs:DescribeLogGroups"): _LOGS,
    ("", "logs:DescribeResourcePolicies"): _LOGS,
    ("", "logs:GetLogDelivery"): _LOGS,
    ("", "logs:ListLogDeliveries"): _LOGS,
    ("", "logs:PutResourcePolicy"): _LOGS,
    ("", "logs:UpdateLogDelivery"): _LOGS,
    ("", "xray:GetSamplingRules"): _TRACES,
    ("", "xray:GetSamplingTargets"): _TRACES,
    ("", "xray:PutTelemetryRecords"): _TRACES,
    ("", "xray:PutTraceSegments"): _TRACES,
    (
        "",
        "autoscaling:DetachInstances",
    ): "a reclaimed instance leaves its group, which then gets another",
    ("", "autoscaling:TerminateInstanceInAutoScalingGroup"): _ENDED,
    ("", "ec2:TerminateInstances"): _ENDED,
    ("", "ssm:SendCommand"): "a node is asked to leave, by one document without parameters",
    ("", "ssm:GetCommandInvocation"): "the answer of the drain is read; AWS knows no resource here",
    ("Failover", "events:PutEvents"): "another region is asked, by this one kind of event",
    (
        "Failover",
        "states:StartExecution",
    ): "runs that another region could not go on with are resumed",
    ("Failover", "dynamodb:GetItem"): _CLAIMS,
    ("Failover", "dynamodb:UpdateItem"): _CLAIMS,
    ("Failover", "dynamodb:ConditionCheckItem"): _CLAIMS,
    ("Failover/Toeu-west-1/EventsRole", "events:PutEvents"): "that region's bus takes the request",
    ("Jobs/Job", "dynamodb:GetItem"): _CLAIMS,
    ("Jobs/Job", "dynamodb:UpdateItem"): _CLAIMS,
    ("Jobs/Job", "dynamodb:ConditionCheckItem"): _CLAIMS,
    ("Jobs/CleanUp", "dynamodb:GetItem"): _CLAIMS,
    ("Jobs/CleanUp", "dynamodb:UpdateItem"): _CLAIMS,
    ("Jobs/CleanUp", "dynamodb:ConditionCheckItem"): _CLAIMS,
    ("Network/FlowLog/IAMRole", "logs:CreateLogStream"): "rejected connections are logged",
    ("Network/FlowLog/IAMRole", "logs:DescribeLogStreams"): "rejected connections are logged",
    ("Network/FlowLog/IAMRole", "logs:PutLogEvents"): "rejected connections are logged",
}
"""Why an action is allowed, by role and action; "" in place of the role is every role."""

OF_RESOURCES: dict[tuple[str, str], str] = {
    ("s3:GetObject", "<the runtime>"): "the runtime that an instance installs as it starts",
    ("ssm:GetParameter", "luma-keys"): "the data key of a run that is sealed with a key file",
}
"""Where one action has another reason on some resource, by action and part of the resource."""
