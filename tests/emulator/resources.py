"""Resources of a template that moto's CloudFormation skips or misreads.

- `AWS::AutoScaling::LifecycleHook` is skipped without a word: here it makes the hook.
- `AWS::CloudWatch::Alarm` is skipped too, and a template that refers to one then fails: here it makes
  an alarm with its metric, threshold and actions (metrics of an expression are left out).
- `AWS::SSM::Parameter`: a template's `Tags` is a map, moto wants the API's list.
- `AWS::SSM::Document`: a template's `Content` may be an object, moto wants text; the
  format is JSON where a template names none.
- `AWS::EC2::RouteTable` and `AWS::EC2::SubnetRouteTableAssociation` are never deleted, so that a
  stack with a network cannot be either.
"""

import copy
import json
from typing import Any

from moto.autoscaling.models import autoscaling_backends
from moto.cloudwatch.models import cloudwatch_backends
from moto.core.common_models import CloudFormationModel
from moto.ec2.models import ec2_backends
from moto.ec2.models.route_tables import RouteTable
from moto.ec2.models.subnets import SubnetRouteTableAssociation
from moto.ssm.models import Document, Parameter

from tests.emulator.patching import extends


def install() -> None:
    """Correct the others in this process; call it before the first request."""
    SubnetRouteTableAssociation.delete = _disassociate
    RouteTable.delete = _delete_route_table
    extends(Parameter, "create_from_cloudformation_json")(_parameter)
    extends(Document, "create_from_cloudformation_json")(_document)


def _disassociate(
    association: SubnetRouteTableAssociation, account_id: str, region_name: str
) -> None:
    backend = ec2_backends[account_id][region_name]
    table = backend.route_tables.get(association.route_table_id)
    for key, subnet in list(table._associations.items()) if table else []:
        if subnet == association.subnet_id:
            backend.disassociate_route_table(key)


def _delete_route_table(table: RouteTable, account_id: str, region_name: str) -> None:
    ec2_backends[account_id][region_name].delete_route_table(table.id)


def _parameter(original: Any, name: str, resource: Any, *args: Any, **kwargs: Any) -> Parameter:
    resource = copy.deepcopy(resource)
    tags = resource["Properties"].get("Tags")
    if isinstance(tags, dict):
        resource["Properties"]["Tags"] = [{"Key": k, "Value": v} for k, v in tags.items()]
    return original(name, resource, *args, **kwargs)


def _document(original: Any, name: str, resource: Any, *args: Any, **kwargs: Any) -> Document:
    resource = copy.deepcopy(resource)
    content = resource["Properties"].get("Content")
    if not isinstance(content, str):
        resource["Properties"]["Content"] = json.dumps(content)
    resource["Properties"].setdefault("DocumentFormat", "JSON")
    return original(name, resource, *args, **kwargs)


class LifecycleHookOfTemplate(CloudFormationModel):
    """`AWS::AutoScaling::LifecycleHook`, put on the group that its template names.

    moto finds the models of CloudFormation among the subclasses of `CloudFormationModel`, so
    importing this module before the first stack is all it needs.
    """

    def __init__(self, group: str, name: str):
        self.group = group
        self.name = name

    @property
    def physical_resource_id(self) -> str:
        return self.name

    @staticmethod
    def cloudformation_name_type() -> str:
        return "LifecycleHookName"

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::AutoScaling::LifecycleHook"

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: Any,
        account_id: str,
        region_name: str,
        **_options: Any,
    ) -> "LifecycleHookOfTemplate":
        properties = cloudformation_json["Properties"]
        name = properties.get("LifecycleHookName", resource_name)
        group = properties["AutoScalingGroupName"]
        timeout = properties.get("HeartbeatTimeout")
        autoscaling_backends[account_id][region_name].create_lifecycle_hook(
            name=name,
            as_name=group,
            transition=properties["LifecycleTransition"],
            timeout=int(timeout) if timeout is not None else None,
            result=properties.get("DefaultResult"),
        )
        return cls(group, name)

    @classmethod
    def update_from_cloudformation_json(
        cls,
        original_resource: "LifecycleHookOfTemplate",
        new_resource_name: str,
        cloudformation_json: Any,
        account_id: str,
        region_name: str,
    ) -> "LifecycleHookOfTemplate":
        original_resource.delete(account_id, region_name)
        return cls.create_from_cloudformation_json(
            new_resource_name, cloudformation_json, account_id, region_name
        )

    def delete(self, account_id: str, region_name: str) -> None:
        backend = autoscaling_backends[account_id][region_name]
        backend.delete_lifecycle_hook(self.group, self.name)


class AlarmOfTemplate(CloudFormationModel):
    """`AWS::CloudWatch::Alarm`; found like the hook above."""

    def __init__(self, name: str, arn: str):
        self.name = name
        self.arn = arn

    @property
    def physical_resource_id(self) -> str:
        return self.name

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return attr == "Arn"

    def get_cfn_attribute(self, attribute_name: str) -> str:
        if attribute_name != "Arn":
            raise KeyError(attribute_name)
        return self.arn

    @staticmethod
    def cloudformation_name_type() -> str:
        return "AlarmName"

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::CloudWatch::Alarm"

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: Any,
        account_id: str,
        region_name: str,
        **_options: Any,
    ) -> "AlarmOfTemplate":
        properties = cloudformation_json["Properties"]
        alarm = cloudwatch_backends[account_id][region_name].put_metric_alarm(
            name=resource_name,
            namespace=properties.get("Namespace"),
            metric_name=properties.get("MetricName"),
            comparison_operator=properties["ComparisonOperator"],
            evaluation_periods=int(properties["EvaluationPeriods"]),
            period=properties.get("Period"),
            threshold=properties.get("Threshold"),
            statistic=properties.get("Statistic"),
            description=properties.get("AlarmDescription", ""),
            dimensions=[],
            alarm_actions=properties.get("AlarmActions", []),
            treat_missing_data=properties.get("TreatMissingData"),
        )
        return cls(resource_name, alarm.alarm_arn)

    @classmethod
    def update_from_cloudformation_json(
        cls,
        original_resource: "AlarmOfTemplate",
        new_resource_name: str,
        cloudformation_json: Any,
        account_id: str,
        region_name: str,
    ) -> "AlarmOfTemplate":
        original_resource.delete(account_id, region_name)
        return cls.create_from_cloudformation_json(
            new_resource_name, cloudformation_json, account_id, region_name
        )

    def delete(self, account_id: str, region_name: str) -> None:
        cloudwatch_backends[account_id][region_name].delete_alarms([self.name])
