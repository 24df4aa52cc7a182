"""The pages about deploying say what is so: parameters, snippets, interface, links."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields
from typing import get_args

import pytest

import luma_constructs
from luma_constructs._context import DEFAULT_FLEETS, AppContext
from luma_constructs._context_keys import KEYS
from runtime.agent.node import metrics
from runtime.spec import account
from tests.e2e.synth import constructs_page
from tests.e2e.synth.__main__ import CONSTRUCTS_PAGE
from tests.support.cdk import ROOT

pytestmark = pytest.mark.timeout(600)  # a busy machine synthesizes slowly

DOCS = ROOT / "docs"
DEPLOY = (DOCS / "how-to" / "deploy.md").read_text(encoding="utf-8")
ACCOUNT = (DOCS / "reference" / "account.md").read_text(encoding="utf-8")
USE = (DOCS / "how-to" / "use-a-construct.md").read_text(encoding="utf-8")
PAGES = [
    DOCS / "why.md",
    DOCS / "how-to" / "deploy.md",
    DOCS / "how-to" / "use-a-construct.md",
    DOCS / "reference" / "account.md",
    DOCS / "reference" / "constructs.md",
    DOCS / "reference" / "roles.md",
    DOCS / "explanation" / "failover.md",
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_that_are_linked_are_there(page):
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


class TestDeploy:
    def rows(self) -> dict[str, tuple[str, str]]:
        table = DEPLOY.partition("| key | value | default |")[2].partition("\n\n")[0]
        cells = [line.strip("|").split(" | ") for line in table.splitlines()[2:]]
        return {
            key: (value, default)
            for keys, value, default in cells
            for key in re.findall(r"`(\w+)`", keys)
        }

    def test_every_parameter_is_there_and_no_other(self):
        assert set(self.rows()) == {key.name for key in KEYS}

    def test_the_default_fleets_are_those_of_the_page(self):
        (shown,) = re.findall(r"`(\S+)`", self.rows()["fleets"][1])
        assert AppContext.read({"fleets": shown}).fleets == DEFAULT_FLEETS

    @pytest.mark.parametrize(
        ("key", "value"), [("stack", "Luma"), ("level", "L1"), ("network", "nat"), ("zones", "2")]
    )
    def test_other_defaults_too(self, key, value):
        assert value in self.rows()[key][1]
        assert str(getattr(AppContext(), key)) == value

    def test_commands_have_parameters_that_are_taken(self):
        commands = re.findall(r"^cdk deploy (-c .+?)(?: +#.*)?$", DEPLOY, re.MULTILINE)
        assert len(commands) >= 3
        for command in commands:
            words = [word for word in shlex.split(command) if word != "-c"]
            given = dict(word.split("=", 1) for word in words if not {"<", ">"} & set(word))
            AppContext.read(given)


class TestUseAConstruct:
    def snippets(self) -> list[str]:
        return re.findall(r"```python\n(.*?)```", USE, re.DOTALL)

    def test_there_are_two(self):
        assert len(self.snippets()) == 2

    @pytest.mark.parametrize("number", [0, 1])
    def test_a_snippet_synthesizes(self, number, tmp_path):
        source = self.snippets()[number]
        assert source.count("cdk.App()") == 1
        exec(source.replace("cdk.App()", f"cdk.App(outdir={str(tmp_path)!r})"), {})
        manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
        assert "missing" not in manifest
        assert list(tmp_path.glob("*.template.json"))


class TestAccount:
    """The interface that nodes, engineers and constructs share."""

    def table(self, heading: str) -> set[str]:
        body = ACCOUNT.partition(heading)[2].partition("\n\n**")[0].partition("\n\n## ")[0]
        rows = [line for line in body.splitlines() if line.startswith("| `")]
        return {name for row in rows for name in re.findall(r"`([a-z_]+)`", row.split("|")[1])}

    def test_the_deployments_parameter(self):
        names = {field.name for field in fields(account.AccountConfig)}
        assert self.table("**`/luma/<stack>/config`**") == names | {"schema"}

    def test_a_fleets_parameter(self):
        names = {field.name for field in fields(account.Fleet)}
        assert self.table("**`/luma/<stack>/fleets/<fleet>`**") == names - {"name", "most"} | {
            "fleet",
            "max",
        }

    def test_names_of_parameters(self):
        for name in (
            account.config_parameter("<stack>"),
            account.fleet_parameter("<stack>", "<fleet>"),
            account.key_parameter("<stack>", "<run>"),
        ):
            assert f"`{name}`" in ACCOUNT

    def test_keys_of_the_table(self):
        digits = re.compile(r"<(\d+) digits>")
        keys = {
            digits.sub(lambda match: "0" * int(match[1]), key)
            for key in re.findall(r"`((?:[A-Z]+#)?[A-Z#<>a-z0-9 ]+)`", ACCOUNT)
        }
        for key in (
            account.run_key("<run>"), account.node_key("<instance>"), account.event_key("<event>"),
            account.fleet_key("<fleet>"), account.claim_item("<run>"), account.slot_item(0),
            account.commit_item(0), account.recommit_item(0, 0), account.epoch_item(0),
            account.checkpoint_item(0), account.note_item(0), account.RUN_ITEM, account.NODE_ITEM,
            account.EVENT_ITEM, account.FLEET_ITEM, account.COORDINATOR_ITEM,
        ):  # fmt: skip
            assert key in keys, key

    def test_words_that_both_sides_use(self):
        for word in (
            *account.RUN_STATES, *account.FAILURES, *get_args(account.WorkKind),
            *get_args(account.Purchase), account.ACCOUNT_SCHEMA,
        ):  # fmt: skip
            assert f"`{word}`" in ACCOUNT, word

    def test_the_message_is_read_by_the_nodes_reader(self):
        (message,) = re.findall(r"```json\n(.*?)```", ACCOUNT, re.DOTALL)
        work = account.Work.from_json(message)
        assert json.loads(work.to_json()) == json.loads(message)

    def test_metrics(self):
        named = re.findall(r"^\| (\w+) \|", metrics.__doc__ or "", re.MULTILINE)
        assert len(named) >= 5
        for name in set(named) - {"metric"}:
            assert f"`{name}`" in ACCOUNT


def test_the_page_of_constructs_is_the_codes():
    """`python -m tests.e2e.synth --docs` writes it again."""
    assert constructs_page.page() == CONSTRUCTS_PAGE.read_text(encoding="utf-8")


def test_the_page_of_constructs_has_every_public_class():
    page = CONSTRUCTS_PAGE.read_text(encoding="utf-8")
    elsewhere = {"AcceptedAmis", "AcceptedImages", "KeyPolicyError", "Measurements"}  # kms.md
    errors = {name for name in luma_constructs.__all__ if name.endswith("Error")}
    for name in set(luma_constructs.__all__) - elsewhere - errors:
        assert f"## `{name}`" in page, name


class TestWhy:
    """Each pain names the tests that show its answer, and they are there."""

    def named(self) -> list[tuple[str, str]]:
        """Give (file, test) of each one that the page names; `::name` is of the file before it."""
        found, file = [], ""
        page = (DOCS / "why.md").read_text(encoding="utf-8")
        for text in re.findall(r"`([^`\n]*::test_\w+)`", page):
            path, _, name = text.partition("::")
            file = path or file
            found.append((file, name))
        return found

    def test_every_named_test_is_there(self):
        assert len(self.named()) >= 30
        for file, name in self.named():
            source = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(rf"^ *(?:async )?def {name}\(", source, re.MULTILINE), (
                f"{file}::{name}"
            )

    def test_every_pain_has_one(self):
        page = (DOCS / "why.md").read_text(encoding="utf-8")
        pains = page.split("\n## ")[1:]
        assert len(pains) >= 6
        assert all("::test_" in pain for pain in pains)
