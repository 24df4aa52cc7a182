"""What several folders of integration tests share: one undisturbed run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.elastic.conftest import Template, launch_template


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory, luma_home: Path) -> Template:
    """Give a finished, undisturbed run on this machine: what every other run must end as."""
    return launch_template(tmp_path_factory.mktemp("elastic"), luma_home)
