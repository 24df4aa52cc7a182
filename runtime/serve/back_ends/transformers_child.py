"""The child process of the transformers back end: `transformers serve`, made to keep its word.

It runs transformers' own server class with `--continuous-batching`, listens on a Unix socket that
only this user can open, and corrects what 5.24 does silently wrong with batching on:

- temperature, top-p and seed come from each request (see `sampling`), not from the first one;
- stop strings, which batching ignores, end the answer;
- an answer whose last token is the end-of-sequence token says `stop` also at its last token;
- a prompt that does not fit the context is refused before anything is generated;
- the cache of keys and values is sized for the model's context and a budget, not for 60% of memory.

The gateway is the only client. A request carries its options in one field, `luma`. The process ends
when its standard input does, so a killed gateway leaves no engine behind.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from typing import Any

import jinja2
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.cli.serve import Serve
from transformers.cli.serving import chat_completion, completion, utils

from runtime.serve.back_ends.sampling import per_request_processors, processor_arguments
from runtime.serve.back_ends.stop_strings import StopFilter

_PAGE_TOKENS = 256
# A prefill's attention mask is [batch tokens, batch tokens + cache tokens] in the model's dtype.
_MAX_BATCH_TOKENS = 1024
_OPTIONS = "_luma_options"


def _bytes_per_token(config: Any) -> int:
    """Give an upper bound of the cache's size for one token, in bytes: fp32 keys and values."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * head_dim * 4


def _cache_blocks(config: Any, budget_bytes: int) -> int:
    """Give the count of cache blocks that the budget holds: at least 2, at most 16 contexts."""
    context = -(-config.max_position_embeddings // _PAGE_TOKENS)
    affordable = budget_bytes // (_bytes_per_token(config) * _PAGE_TOKENS)
    return max(2, min(affordable, 16 * context))


class _Sampled:
    """The batching manager, with one request's sampling arguments added to its `add_request`."""

    def __init__(self, manager: Any, arguments: dict[str, Any]) -> None:
        self._manager = manager
        self._arguments = arguments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def add_request(self, *args: Any, **kwargs: Any) -> str | None:
        """Submit the request; a manager that takes none is an error, not a stream that hangs."""
        request_id = self._manager.add_request(*args, **kwargs, **self._arguments)
        if request_id is None:
            raise HTTPException(503, detail="the engine takes no requests")
        return request_id


class PerRequestManager(utils.CBGenerateManager):
    """transformers' batching manager with each request's own sampling, stops and limits."""

    budget_bytes = 0

    def init_cb(self, model: Any, gen_config: GenerationConfig) -> None:
        """Create the engine once; nothing of the first request's options stays in it."""
        if self._cb is not None:
            return
        config = model.config.get_text_config()
        blocks = _cache_blocks(config, self.budget_bytes)
        self.context = min(config.max_position_embeddings, blocks * _PAGE_TOKENS)
        self._cb = model.init_continuous_batching(
            generation_config=GenerationConfig(
                do_sample=False, use_cache=False, eos_token_id=gen_config.eos_token_id
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=_PAGE_TOKENS, num_blocks=blocks, max_batch_tokens=_MAX_BATCH_TOKENS
            ),
        )
        self._cb.logit_processor = per_request_processors()
        self._cb.start()

    def generate_streaming(
        self,
        model: Any,
        processor: Any,
        inputs: dict[str, Any],
        gen_config: GenerationConfig,
        request_id: str,
        response_parser: Any = None,
    ) -> tuple[Any, Any]:
        """Start one answer with its own options; see the class it overrides.

        The response parser is left out: it moves a model's reasoning into a field of its own, and
        drops what it cannot place. The whole text goes to the client as the model wrote it.
        """
        del response_parser
        options = getattr(gen_config, _OPTIONS)
        self._fit(len(inputs["input_ids"]), gen_config, clamp=options["clamp_max_tokens"])
        manager = self._cb
        sampled: Any = _Sampled(manager, processor_arguments(**options["sampling"]))
        # The parent takes the manager from this attribute, within this call only.
        self._cb = sampled
        try:
            queue, streamer = super().generate_streaming(
                model, processor, inputs, gen_config, request_id
            )
        finally:
            self._cb = manager
        _judge_end(manager, streamer, gen_config, request_id)
        if options["stop"]:
            _stop_at(tuple(options["stop"]), queue, streamer, gen_config)
        return queue, streamer

    def _fit(self, prompt: int, gen_config: GenerationConfig, *, clamp: bool) -> None:
        """Refuse what exceeds the context, or shorten an answer whose length nobody chose."""
        asked, room = gen_config.max_new_tokens, self.context - prompt
        if clamp and room > 0:
            gen_config.max_new_tokens = min(asked, room)
        elif asked > room:
            message = (
                f"this model's maximum context length is {self.context} tokens, but the prompt has"
                f" {prompt} and {asked} were asked for; shorten the prompt or lower max_tokens"
            )
            raise HTTPException(400, detail={"message": message, "code": "context_length_exceeded"})


def _judge_end(manager: Any, streamer: Any, gen_config: Any, request_id: str) -> None:
    """Make the handler say `stop` when the model itself ended, and forget a cancelled request."""
    put, cancel = streamer.put, streamer.cancel
    eos = gen_config.eos_token_id
    eos_ids = {eos} if isinstance(eos, int) else set(eos or ())

    def judged_put(output: Any) -> None:
        put(output)
        if output.generated_tokens and output.generated_tokens[-1] in eos_ids:
            gen_config.max_new_tokens = None  # the handler compares with it: None means `stop`

    def forgetting_cancel() -> None:
        cancel()
        with manager.output_router._lock:  # noqa: SLF001 - transformers forgets only finished ones
            manager.output_router.result_handlers.pop(request_id, None)

    streamer.put, streamer.cancel = judged_put, forgetting_cancel


def _stop_at(stop: tuple[str, ...], queue: Any, streamer: Any, gen_config: Any) -> None:
    """Filter the answer's text through its stop strings; at one of them, end it and the work."""
    put_nowait, text_filter = queue.put_nowait, StopFilter(stop)

    def filtered(item: Any) -> None:
        if text_filter.stopped:
            return
        if type(item) is not str:  # the end, an error, or a parsed part of another kind
            held = text_filter.flush()
            if held:
                put_nowait(held)
            put_nowait(item)
            return
        text = text_filter.feed(item)
        if text:
            put_nowait(text)
        if text_filter.stopped:
            gen_config.max_new_tokens = None
            streamer.put = lambda _output: None  # tokens after the stop are not the answer's
            put_nowait(None)
            streamer.cancel()

    queue.put_nowait = filtered


def _with_options(handler: type) -> None:
    """Let a request handler keep the request's `luma` field beside its generation config."""
    build = handler._build_generation_config  # noqa: SLF001 - no public hook

    def build_with_options(self, body, model_generation_config, use_cb=False):  # noqa: ANN001, ANN202, FBT002
        if not use_cb:
            raise HTTPException(501, detail="this model does not support continuous batching")
        config = build(self, body, model_generation_config, use_cb=use_cb)
        setattr(config, _OPTIONS, body["luma"])
        return config

    handler._build_generation_config = build_with_options  # noqa: SLF001
    handler._valid_params_class = None  # noqa: SLF001 - the gateway has validated already


class _Config(uvicorn.Config):
    """uvicorn's configuration for the private socket, without access lines."""

    socket_path = ""

    def __init__(self, app: FastAPI, **_options: Any) -> None:
        app.add_exception_handler(jinja2.TemplateError, _template_refusal)
        super().__init__(
            app, uds=self.socket_path, log_level="error", access_log=False, timeout_keep_alive=3600
        )


async def _template_refusal(_request: Request, error: Exception) -> JSONResponse:
    """Answer a conversation that the model's chat template refuses, in the template's words."""
    message = f"the model's chat template refuses these messages: {error}"
    return JSONResponse({"detail": {"message": message, "code": None}}, status_code=400)


def _end_with_parent() -> None:
    """Wait for the end of standard input, which the gateway holds open, and end the process."""
    while os.read(0, 4096):
        pass
    os._exit(0)


def main() -> None:
    """Serve one checkpoint folder on a Unix socket until told to stop."""
    parser = argparse.ArgumentParser(prog="luma-transformers-back-end")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cache-bytes", type=int, required=True)
    args = parser.parse_args()
    threading.Thread(target=_end_with_parent, daemon=True).start()

    PerRequestManager.budget_bytes = args.cache_bytes
    utils.CBGenerateManager = PerRequestManager
    _with_options(chat_completion.ChatCompletionHandler)
    _with_options(completion.CompletionHandler)
    _Config.socket_path = args.socket
    uvicorn.Config = _Config
    os.umask(0o077)
    Serve(
        force_model=args.checkpoint,
        continuous_batching=True,
        device=args.device,
        log_level="error",
    )


if __name__ == "__main__":
    sys.exit(main())
