"""A LoRA run is served from whole weights: its own base and its adapter, merged by peft."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from runtime.run.folder import RunFolder
from runtime.run.merge import merged_checkpoint
from runtime.serve.checkpoint import find_checkpoint, read_servable
from runtime.spec import RunError
from tests.integration.training.conftest import STEPS, Launched

pytestmark = pytest.mark.timeout(300)


def test_an_adapter_is_merged_once_into_a_folder_that_can_be_served(
    launched: Callable[[str], Launched],
) -> None:
    run = launched("lora")
    checkpoint = find_checkpoint(run.folder)
    assert checkpoint == run.checkpoint(STEPS)
    said: list[str] = []
    merged = merged_checkpoint(RunFolder(run.folder), checkpoint, said.append)
    assert any("merging" in text for text in said)
    assert read_servable(merged).has_chat_template

    base = AutoModelForCausalLM.from_pretrained(run.place / "base")
    expected = PeftModel.from_pretrained(base, checkpoint).eval()
    ids = torch.arange(24)[None]
    with torch.no_grad():
        ours = AutoModelForCausalLM.from_pretrained(merged).eval()(ids).logits
        theirs = expected(ids).logits
        untrained = expected.unload()(ids).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(ours, untrained, rtol=1e-4, atol=1e-5)
    text = "What is a list?"
    original = AutoTokenizer.from_pretrained(run.place / "base")
    assert AutoTokenizer.from_pretrained(merged)(text) == original(text)

    said.clear()
    assert merged_checkpoint(RunFolder(run.folder), checkpoint, said.append) == merged
    assert said == []


def test_whole_weights_need_no_merge(launched: Callable[[str], Launched]) -> None:
    run = launched("packed")
    checkpoint = run.checkpoint(STEPS)
    assert merged_checkpoint(RunFolder(run.folder), checkpoint, print) == checkpoint
    assert not (run.folder / "merged").exists()


@pytest.mark.slow
def test_a_model_that_is_another_one_now_is_refused(launched: Callable[[str], Launched]) -> None:
    run = launched("lora")
    config = run.place / "base" / "config.json"
    before = config.read_text()
    checkpoint = run.checkpoint(10)
    try:
        config.write_text(json.dumps(json.loads(before) | {"num_hidden_layers": 1}))
        with pytest.raises(RunError, match="not the one that was trained"):
            merged_checkpoint(RunFolder(run.folder), checkpoint, print)
        assert not list((run.folder / "merged").glob("*10-*"))
    finally:
        config.write_text(before)
