"""The job's machine, executed: the test plays the nodes."""


def test_a_compiled_run_trains_exports_and_gives_everything_back(world):
    world.prepare("one")
    arn = world.start("Jobs", {"run": "one"})

    coordinate = world.take("coordinator", "coordinate")
    islands = [world.take("l4", "island") for _ in range(2)]
    assert {work["slot"] for work in islands} == {0, 1}
    assert world.claims("one") == {"l4": (2, 2), "coordinator": (1, 1)}
    assert (world.size("l4"), world.size("coordinator")) == (2, 1)
    assert world.run("one")["state"] == "running"

    world.succeed(coordinate, phase="done", state_hash="abc", steps=3, cost_usd=0.1, reason="")
    for work in islands:
        world.succeed(work, ended="done")
    export = world.take("coordinator", "export")
    world.succeed(export, state_hash="abc", certificate="c", export="e")

    assert world.end(arn)["status"] == "SUCCEEDED"
    ended = world.run("one")
    assert (ended["state"], ended["state_hash"], ended["reason"]) == ("done", "abc", "")
    assert world.claims("one") == {}
    assert (world.size("l4"), world.size("coordinator"), world.size("compiler")) == (0, 0, 0)
