"""The tokenizer process: requests become token sequences on their way in, tokens become text on their way out.

It must never import torch, and a request that fails here must hurt nobody else. Encoding runs on two threads, one for
short and one for long texts, so that neither a long prompt nor a crowd of them holds up the streams of others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from ...constrained.spec import Compiled
from ...runtime.errors import TemplateError
from ...runtime.text.chat.prompts import DEFAULT, TOOL_USE, ChatPrompts
from ...runtime.text.chat.sandbox import TemplateProgram
from ...runtime.text.chat.tools.format_detection import tool_format
from ...runtime.text.tokenizers.base import Tokenizer
from ...runtime.text.tokenizers.loading import load_tokenizer
from ..wire.answers import CacheMiss, Rejected, TextChunk, TokenBatch, TokenChunk
from ..wire.child import Child
from ..wire.errors import ConfigError, InvalidRequest
from ..wire.inboxes import ToTokenizer
from ..wire.lifecycle import ConfigureTokenizer, Limits, ReasoningInfo, Shutdown
from ..wire.logs import start_logging
from ..wire.options import EngineConfig
from ..wire.questions import DetokenizeCall, RenderCall, Rendered, TokenizeCall, Tokenized, TokenizerCall, TokenizerInfo
from ..wire.requests import Abort, StopMatched, Submit
from ..wire.sockets import AsyncInbox, Outbox
from .cache_report import CacheReports
from .grammars.pool import CompilerFailed
from .grammars.service import GrammarService, Refused
from .prompt_encoding import Encoded, PromptEncoder, encoding_work, rendering_work
from .reasoning_output import reasoning_output, thinking_first
from .text_output import SampleOutput
from .tokenizing import tokenized, tokenizing_work
from .tool_calling import call_output, calls_tools, complaint_about, constraint_with_tools, model_tools

WARM_AFTER_SECONDS = 1.0  # once requests can come; an engine that ends before that has no use for it
_TAKEN_OUT = "is taken out of later turns, so that the answer after it is not found in the cache"
LONG_WORK = 20_000  # bytes; encoding this many takes some milliseconds


class _Lane:
    """A thread that encodes one request after the other.

    Each has a tokenizer to itself for encoding: its implementations are not safe to share among threads, least of all
    where text must not become control tokens. (Looking up a token's bytes is.)
    """

    def __init__(
        self, name: str, tokenizer: Callable[[], Tokenizer], prompts: Callable[[Tokenizer], ChatPrompts | None]
    ) -> None:
        """tokenizer, prompts: called in the thread, when the first request comes."""
        self._make_prompts = prompts
        self._thread = ThreadPoolExecutor(1, name)
        self._make_tokenizer = tokenizer
        self._encoder: PromptEncoder | None = None

    async def encode(self, submit: Submit, max_context: int) -> Encoded:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, submit, max_context)

    async def render(self, call: RenderCall) -> Rendered:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._render, call)

    def _encode(self, submit: Submit, max_context: int) -> Encoded:
        return self._ready_encoder().encode(submit, max_context)

    def _render(self, call: RenderCall) -> Rendered:
        prompt, text = self._ready_encoder().render(call.chat)
        return Rendered(call.call_id, prompt, text)

    async def tokenize(self, call: TokenizeCall | DetokenizeCall) -> Tokenized:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._tokenize, call)

    def _tokenize(self, call: TokenizeCall | DetokenizeCall) -> Tokenized:
        return tokenized(self._ready_encoder(), call)

    def _ready_encoder(self) -> PromptEncoder:
        if self._encoder is None:
            tokenizer = self._make_tokenizer()
            self._encoder = PromptEncoder(tokenizer, self._make_prompts(tokenizer))
        return self._encoder


class TokenizerProcess:
    """Joins a model's text handling to the sockets. All sending happens in the event loop's thread."""

    def __init__(self, child: Child, model_path: Path, options: EngineConfig) -> None:
        self._child = child
        self._tokenizer = load_tokenizer(model_path)
        self.vocab_size = self._tokenizer.vocab_size
        self._scheduler = Outbox(child.link, "scheduler")
        templates = _templates(options, self._tokenizer)
        self._template = templates.get(DEFAULT, "")
        style = tool_format(options.tool_format, templates.get(TOOL_USE, templates.get(DEFAULT)))
        self._tools = model_tools(style, self._tokenizer)

        def prompts(tokenizer: Tokenizer) -> ChatPrompts | None:
            style = partial(tool_format, options.tool_format)
            return ChatPrompts(templates, tokenizer, style, options.reasoning_format) if templates else None

        self.reasoning = _reasoning(prompts(self._tokenizer))
        if self.reasoning.marks:
            earlier = "stays in later turns" if self.reasoning.keeps_earlier else _TAKEN_OUT
            child.log.info("thinking is marked as %r is; what was thought %s", self.reasoning.marks, earlier)
        self._short = _Lane("short", lambda: self._tokenizer, prompts)
        self._long = _Lane("long", lambda: load_tokenizer(model_path), prompts)
        self._grammars = GrammarService(model_path)
        self._warming: asyncio.Task[None] | None = None
        self._max_context = 0
        self._encoding: dict[str, asyncio.Task[None]] = {}
        self._rendering: set[asyncio.Task[None]] = set()
        self._open: dict[str, dict[int, SampleOutput]] = {}
        self._prompts: dict[str, Encoded] = {}  # of those whose first token is still to come
        self._reports = CacheReports(quotes=options.quote_cached)

    async def run(self, inbox: AsyncInbox[ToTokenizer]) -> None:
        """Serve until Shutdown."""
        while True:
            message = await inbox.receive()
            match message:
                case Submit():
                    task = asyncio.create_task(self._submit(message))
                    self._encoding[message.request_id] = task
                case RenderCall():
                    task = asyncio.create_task(self._render(message))
                    self._rendering.add(task)
                    task.add_done_callback(self._rendering.discard)
                case TokenizeCall() | DetokenizeCall():
                    task = asyncio.create_task(self._tokenize(message))
                    self._rendering.add(task)
                    task.add_done_callback(self._rendering.discard)
                case TokenizerCall():
                    self._child.front.send(self._described(message))
                case Abort():
                    self._abort(message)
                case TokenBatch():
                    for chunk in message.chunks:
                        self._answer(chunk)
                case Limits():
                    self._max_context = message.max_context
                    if self._warming is None:
                        self._warming = asyncio.create_task(self._warm_grammars())
                case Shutdown():
                    if self._warming is not None:
                        self._warming.cancel()
                    await self._grammars.close()
                    return
                case ConfigureTokenizer():
                    self._child.log.warning("configured a second time; ignored")
            await asyncio.sleep(0)  # an inbox that is never empty would starve the encoding tasks

    # --- on the way in ---------------------------------------------------------------------------------------------

    async def _submit(self, submit: Submit) -> None:
        """Encode, then hand the sequences on, unless the request was aborted meanwhile (which cancels this task)."""
        try:
            lane = self._long if encoding_work(submit) > LONG_WORK else self._short
            encoded = await lane.encode(submit, self._max_context)
            self._open_samples(encoded, await self._compiled(submit))
        except InvalidRequest as error:
            self._child.front.send(Rejected.of(submit.request_id, error))
        except CompilerFailed as error:
            self._child.front.send(Rejected(submit.request_id, "failed", [str(error)]))
        except Exception as error:
            self._child.log.exception("request %s failed in the tokenizer", submit.request_id)
            text = f"The request could not be tokenized: {type(error).__name__}: {error}"
            self._child.front.send(Rejected(submit.request_id, "failed", [text]))
        finally:
            if self._encoding.get(submit.request_id) is asyncio.current_task():
                del self._encoding[submit.request_id]

    async def _compiled(self, submit: Submit) -> Compiled | None:
        """The constraint of a request. Raises InvalidRequest."""
        constraint = constraint_with_tools(submit, self._tools)
        if constraint is None:
            return None
        try:
            return await self._grammars.compile(constraint)
        except Refused as error:
            raise complaint_about(submit, constraint, str(error)) from None

    async def _warm_grammars(self) -> None:
        await asyncio.sleep(WARM_AFTER_SECONDS)
        await self._grammars.warm()

    def _open_samples(self, encoded: Encoded, grammar: Compiled | None) -> None:
        submit = encoded.submit
        relaxed = grammar.relaxed if grammar is not None else []
        constrained = grammar is not None and not calls_tools(submit)
        thinks = partial(reasoning_output, submit.chat, encoded.reasoning, self._tokenizer, constrained=constrained)
        grammar = thinking_first(grammar, encoded.reasoning, self._tokenizer)
        self._open[submit.request_id] = {
            i: SampleOutput(
                self._tokenizer,
                submit,
                i,
                sequence,
                encoded.prompt_text,
                call_output(submit, self._tools),
                relaxed if i == 0 else (),
                thinks(),
            )
            for i, sequence in enumerate(encoded.sequences)
        }
        self._prompts[submit.request_id] = encoded
        for request in encoded.requests:
            self._scheduler.send(msgspec.structs.replace(request, grammar=grammar))

    async def _render(self, call: RenderCall) -> None:
        try:
            lane = self._long if rendering_work(call.chat) > LONG_WORK else self._short
            rendered = await lane.render(call)
        except InvalidRequest as error:
            rendered = Rendered(call.call_id, error=str(error), path=list(error.path or ()))
        except Exception as error:
            self._child.log.exception("a conversation could not be rendered")
            text = f"The conversation could not be rendered: {type(error).__name__}: {error}"
            rendered = Rendered(call.call_id, error=text)
        self._child.front.send(rendered)

    async def _tokenize(self, call: TokenizeCall | DetokenizeCall) -> None:
        try:
            lane = self._long if tokenizing_work(call) > LONG_WORK else self._short
            answer = await lane.tokenize(call)
        except InvalidRequest as error:
            answer = Tokenized(call.call_id, error=str(error), path=list(error.path or ()))
        except Exception as error:
            self._child.log.exception("a text could not be tokenized")
            text = f"The text could not be tokenized: {type(error).__name__}: {error}"
            answer = Tokenized(call.call_id, error=text)
        self._child.front.send(answer)

    def _described(self, call: TokenizerCall) -> TokenizerInfo:
        known = self._tokenizer
        return TokenizerInfo(
            call.call_id,
            known.named_tokens,
            sorted(known.eos_ids),
            known.bos_id,
            known.adds_bos,
            known.vocab_size,
            self._template,
        )

    def _abort(self, message: Abort) -> None:
        encoding = self._encoding.pop(message.request_id, None)
        if encoding is not None:
            encoding.cancel()
        self._prompts.pop(message.request_id, None)
        if self._open.pop(message.request_id, None) is not None:
            self._scheduler.send(message)

    # --- on the way out --------------------------------------------------------------------------------------------

    def _answer(self, chunk: TokenChunk) -> None:
        """Pass a chunk on as text. Chunks of samples that are over (aborted, stopped by a string) are dropped."""
        samples = self._open.get(chunk.request_id, {})
        output = samples.get(chunk.index)
        if output is None:
            return
        try:
            text_chunk = output.take(chunk)
        except Exception as error:
            self._fail(chunk.request_id, error)
            return
        text_chunk = self._told(chunk.miss, text_chunk)
        if output.finished:
            if chunk.finish is None:
                self._scheduler.send(StopMatched(chunk.request_id, chunk.index))
            del samples[chunk.index]
            if not samples:
                del self._open[chunk.request_id]
                self._prompts.pop(chunk.request_id, None)
        self._child.front.send(text_chunk)

    def _told(self, miss: CacheMiss | None, text_chunk: TextChunk) -> TextChunk:
        """The chunk with what is to be said of the cache. What goes wrong with that costs nobody an answer."""
        try:
            encoded = self._prompts.pop(text_chunk.request_id) if miss is not None else None
            if miss is not None and encoded is not None:
                report = self._reports.report(encoded.submit, encoded.first, miss)
                text_chunk = msgspec.structs.replace(text_chunk, cache=report)
            self._reports.said(text_chunk.request_id, text_chunk)
        except Exception:
            self._child.log.exception("no report about the cache for request %s", text_chunk.request_id)
        return text_chunk

    def _fail(self, request_id: str, error: Exception) -> None:
        self._child.log.exception("request %s failed in the tokenizer", request_id)
        self._abort(Abort(request_id))
        text = f"The completion could not be turned into text: {type(error).__name__}: {error}"
        self._child.front.send(Rejected(request_id, "failed", [text]))


async def _serve(child: Child) -> None:
    inbox: AsyncInbox[ToTokenizer] = AsyncInbox(child.link, "tokenizer", ToTokenizer)
    child.hello()
    while not isinstance(message := await inbox.receive(), ConfigureTokenizer):
        if isinstance(message, Shutdown):
            return
    start_logging(child.role, message.options.log_level)
    started = time.perf_counter()
    process = TokenizerProcess(child, Path(message.model_path), message.options)
    timings = {"load": time.perf_counter() - started}
    child.ready(timings, vocab_size=process.vocab_size, reasoning=process.reasoning)
    await process.run(inbox)


def serve(child: Child) -> None:
    """Load the model's tokenizer as configured, then run until Shutdown."""
    asyncio.run(_serve(child))


def _reasoning(prompts: ChatPrompts | None) -> ReasoningInfo:
    """What the usual template does about thinking; nothing where it fails."""
    try:
        found = prompts.reasoning() if prompts is not None else None
    except TemplateError:
        found = None
    if found is None:
        return ReasoningInfo()
    marks = found.marks.name if found.marks is not None else ""
    return ReasoningInfo(marks, found.takes_switch, found.takes_effort, found.keeps_earlier)


def _templates(options: EngineConfig, tokenizer: Tokenizer) -> dict[str, str]:
    """The chat templates by name: the model's own, or the one in the file that is given. Raises ConfigError."""
    if not options.chat_template:
        return tokenizer.chat_templates
    path = Path(options.chat_template).expanduser()
    try:
        source = path.read_text(encoding="utf-8")
        TemplateProgram(source)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigError.about(("chat_template",), f"cannot be read from {path}: {reason}.") from None
    except TemplateError as error:
        raise ConfigError.about(("chat_template",), f"in {path}: {error}.") from None
    return {DEFAULT: source}
