"""Auto Scaling: families without capacity, activities, hooks, places and purchases."""

import uuid

import pytest
from botocore.exceptions import ClientError

from tests.emulator.waiting import until

# Several processes start here: pytest's own limit is too short for a busy machine.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def scaling(server):
    return server.client("autoscaling")


@pytest.fixture
def group(server, scaling):
    """Make a group; no instance in it."""
    ec2 = server.client("ec2")
    made = []

    def make(*types, base=0, percent=0, most=5):
        name = f"g-{uuid.uuid4().hex}"
        ec2.create_launch_template(
            LaunchTemplateName=name,
            LaunchTemplateData={"ImageId": "ami-12345678", "InstanceType": types[0]},
        )
        scaling.create_auto_scaling_group(
            AutoScalingGroupName=name,
            MinSize=0,
            MaxSize=most,
            AvailabilityZones=["us-east-1a", "us-east-1b"],
            MixedInstancesPolicy={
                "LaunchTemplate": {
                    "LaunchTemplateSpecification": {"LaunchTemplateName": name},
                    "Overrides": [{"InstanceType": kind} for kind in types],
                },
                "InstancesDistribution": {
                    "OnDemandBaseCapacity": base,
                    "OnDemandPercentageAboveBaseCapacity": percent,
                },
            },
        )
        made.append(name)
        return name

    yield make
    for name in made:
        server.capacity(name, None)
        scaling.delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)


@pytest.fixture
def instances(server, scaling):
    """The instances of a group, as EC2 describes them."""

    def describe(name):
        [found] = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])[
            "AutoScalingGroups"
        ]
        ids = [i["InstanceId"] for i in found["Instances"]]
        if not ids:
            return []
        answer = server.client("ec2").describe_instances(InstanceIds=ids)
        return [i for r in answer["Reservations"] for i in r["Instances"]]

    return describe


def resize(scaling, name, size):
    scaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=size)


def activities(scaling, name):
    return scaling.describe_scaling_activities(AutoScalingGroupName=name)["Activities"]


def test_a_group_without_capacity_stays_below_and_says_why(server, scaling, group, instances):
    name = group("c7i.large")
    server.capacity(name, 0)
    resize(scaling, name, 2)
    assert instances(name) == []
    newest = activities(scaling, name)[0]
    assert newest["StatusCode"] == "Failed"
    assert "UnfulfillableCapacity" in newest["StatusMessage"]
    assert newest["StatusMessage"] in newest["Description"]


def test_it_launches_what_it_lacks_when_capacity_is_back(server, scaling, group, instances):
    name = group("c7i.large")
    server.capacity(name, 1)
    resize(scaling, name, 3)
    assert len(instances(name)) == 1
    server.capacity(name, None)
    assert len(instances(name)) == 3
    assert activities(scaling, name)[0]["StatusCode"] == "Successful"


def test_on_demand_has_its_own_words(server, scaling, group):
    name = group("c7i.large", percent=100)
    server.capacity(name, 0)
    resize(scaling, name, 1)
    assert (
        "do not have sufficient c7i.large capacity" in activities(scaling, name)[0]["StatusMessage"]
    )


def test_the_first_type_with_capacity_is_launched(server, scaling, group, instances):
    name = group("c7i.large", "m7i.large")
    server.capacity("c7i.large", 1)
    try:
        resize(scaling, name, 2)
        assert [i["InstanceType"] for i in instances(name)] == ["c7i.large", "m7i.large"]
    finally:
        server.capacity("c7i.large", None)


@pytest.mark.parametrize(
    ("base", "percent", "on_demand"), [(0, 0, 0), (1, 0, 1), (0, 50, 2), (1, 50, 3), (0, 100, 4)]
)
def test_spot_and_on_demand_are_split_as_asked(scaling, group, instances, base, percent, on_demand):
    name = group("c7i.large", base=base, percent=percent)
    resize(scaling, name, 4)
    lifecycles = [i.get("InstanceLifecycle") for i in instances(name)]
    assert lifecycles.count("spot") == 4 - on_demand


def test_zones_are_balanced(scaling, group, instances):
    name = group("c7i.large")
    resize(scaling, name, 4)
    zones = [i["Placement"]["AvailabilityZone"] for i in instances(name)]
    assert {zone: zones.count(zone) for zone in zones} == {"us-east-1a": 2, "us-east-1b": 2}


def test_a_detached_instance_is_replaced_and_lives_on(server, scaling, group, instances):
    name = group("c7i.large")
    resize(scaling, name, 1)
    [old] = instances(name)
    scaling.detach_instances(
        AutoScalingGroupName=name,
        InstanceIds=[old["InstanceId"]],
        ShouldDecrementDesiredCapacity=False,
    )
    [new] = instances(name)
    assert new["InstanceId"] != old["InstanceId"]
    answer = server.client("ec2").describe_instances(InstanceIds=[old["InstanceId"]])
    assert answer["Reservations"][0]["Instances"][0]["State"]["Name"] == "running"


def test_an_instance_that_aws_takes_is_replaced(server, scaling, group, instances):
    name = group("c7i.large")
    resize(scaling, name, 1)
    [old] = instances(name)
    server.control("end-instance", instance=old["InstanceId"])
    [new] = instances(name)
    assert new["InstanceId"] != old["InstanceId"]


@pytest.mark.parametrize("size", [6, -1])
def test_a_size_beyond_the_groups_bounds_is_refused(scaling, group, size):
    name = group("c7i.large")
    with pytest.raises(ClientError) as caught:
        resize(scaling, name, size)
    assert caught.value.response["Error"]["Code"] == "ValidationError"


@pytest.fixture
def hooked(scaling, group):
    """A group with one instance and a termination hook of some time-out."""

    def make(timeout):
        name = group("c7i.large")
        scaling.put_lifecycle_hook(
            AutoScalingGroupName=name,
            LifecycleHookName="luma-drain",
            LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
            HeartbeatTimeout=timeout,
            DefaultResult="CONTINUE",
        )
        resize(scaling, name, 1)
        return name

    return make


def states(scaling, name):
    found = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])
    return [i["LifecycleState"] for i in found["AutoScalingGroups"][0]["Instances"]]


def test_a_hook_holds_an_instance_until_it_is_answered(scaling, hooked, instances):
    name = hooked(3600)
    [instance] = instances(name)
    resize(scaling, name, 0)
    assert states(scaling, name) == ["Terminating:Wait"]
    action = {
        "AutoScalingGroupName": name,
        "LifecycleHookName": "luma-drain",
        "InstanceId": instance["InstanceId"],
        "LifecycleActionResult": "CONTINUE",
    }
    scaling.complete_lifecycle_action(**action)
    assert states(scaling, name) == []
    with pytest.raises(ClientError):
        scaling.complete_lifecycle_action(**action)


def test_a_hook_that_nobody_answers_runs_out(scaling, hooked):
    name = hooked(1)
    resize(scaling, name, 0)
    until(lambda: states(scaling, name) == [], "the end of the hook")
