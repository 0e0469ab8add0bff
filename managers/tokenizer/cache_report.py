"""Why a prompt was not cached, in the words of its sender: which message it lies in, and what changed since last time.

It explains and changes nothing. It must say nothing of another namespace to anyone but the server's log, and its memory
is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from ..wire.answers import CacheMiss, CacheReport, MissReason, TextChunk
from ..wire.requests import Chat, Submit
from .prompt_text import PromptText, content_of

MAX_CHATS = 16
MAX_TOKENS = 2**20  # of their prompts
_SHOWN = 8  # tokens


@dataclass
class _Recent:
    """A conversation whose prompt was computed, and what the model said to it."""

    namespace: str
    chat: Chat
    ids: np.ndarray
    answer: list[str] = field(default_factory=list)


class CacheReports:
    """Makes the reports of one engine."""

    def __init__(self, *, quotes: bool) -> None:
        """quotes: reports may say what others of the same namespace had sent."""
        self._quotes = quotes
        self._recent: OrderedDict[str, _Recent] = OrderedDict()
        self._tokens = 0

    def report(self, submit: Submit, prompt: PromptText, miss: CacheMiss) -> CacheReport:
        """What to say of a request whose prompt has been computed now."""
        position, reason, chat = miss.position, miss.reason, submit.chat
        message, role = None, ""
        if reason == "never_seen" and miss.cached_ids and _is_same_text(prompt, miss):
            reason = "tokenized_otherwise"
        if chat is not None:
            messages = chat.messages
            at, is_inside = prompt.message_at(position, messages, ended=not miss.cached_ids)
            if at < len(messages):
                message, role = at, str(messages[at].get("role"))
            if reason == "never_seen" and miss.cached_ids:
                is_over = prompt.message_at(position, messages, ended=True)[0] > at
                reason = self._what_changed(
                    submit.namespace, chat, prompt.ids, position, at, is_inside=is_inside, is_over=is_over
                )
            self._remember(submit, chat, prompt.ids)
        asked = submit.explain_cache
        return CacheReport(
            position,
            reason,
            message,
            role,
            prompt.character(position) if asked else None,
            _text(prompt.bytes_of(miss.cached_ids)) if asked and self._quotes else "",
            _text(prompt.bytes_of(prompt.ids[position : position + _SHOWN].tolist())) if asked else "",
            miss.elsewhere,
        )

    def said(self, request_id: str, chunk: TextChunk) -> None:
        """The model went on with its answer to a conversation."""
        recent = self._recent.get(request_id)
        if recent is not None and chunk.index == 0 and chunk.text:
            recent.answer.append(chunk.text)

    def _remember(self, submit: Submit, chat: Chat, ids: np.ndarray) -> None:
        self._recent[submit.request_id] = _Recent(submit.namespace, chat, ids)
        self._tokens += len(ids)
        while self._recent and (len(self._recent) > MAX_CHATS or self._tokens > MAX_TOKENS):
            self._tokens -= len(self._recent.popitem(last=False)[1].ids)

    def _what_changed(
        self, namespace: str, chat: Chat, ids: np.ndarray, position: int, at: int, *, is_inside: bool, is_over: bool
    ) -> MissReason:
        """Compare with the conversations of before that have the same prompt up to this position, latest first. at: the
        message that it lies in, or in what is before its text, unless it `is_inside`. is_over: all of its text is
        before the position."""
        options, own_id = _options(chat), ids.item(position)
        for other in reversed(self._recent.values()):
            messages = other.chat.messages
            turned_here = len(other.ids) > position and other.ids.item(position) != own_id
            is_answer = len(messages) == at < len(chat.messages) and chat.messages[at].get("role") == "assistant"
            if other.namespace != namespace or not (turned_here or is_answer):
                continue
            is_sent_before = at < min(len(messages), len(chat.messages)) and messages[at] == chat.messages[at]
            other_options = turned_here and not is_inside and _options(other.chat) != options
            if not (is_sent_before or is_answer or other_options):
                continue
            if messages[:at] != chat.messages[:at] or not _agree(other.ids, ids, position):
                continue
            if turned_here and _options(other.chat) != options:
                return "tools_changed"
            if is_sent_before or turned_here:
                return "template_changed_earlier_text"
            if content_of(chat.messages[at]).strip() != "".join(other.answer).strip():
                return "answer_changed"
            # the model may have gone on behind what was its answer: a stop string was found in it
            return "never_seen" if is_over else "template_changed_earlier_text"
        return "never_seen"


def _is_same_text(prompt: PromptText, miss: CacheMiss) -> bool:
    """Whether the path and the prompt go on with one text in other tokens, as far as both are known."""
    ours = prompt.bytes_of(prompt.ids[miss.position : miss.position + _SHOWN].tolist())
    theirs = prompt.bytes_of(miss.cached_ids)
    return bool(ours and theirs) and (ours.startswith(theirs) or theirs.startswith(ours))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _agree(a: np.ndarray, b: np.ndarray, length: int) -> bool:
    """Whether two prompts are the same up to this position, or to the end of the first."""
    length = min(len(a), length)
    return length == 0 or (bool(a[length - 1] == b[length - 1]) and bool(np.array_equal(a[:length], b[:length])))


def _options(chat: Chat) -> tuple[object, ...]:
    """What a template is given beside the messages."""
    return chat.tools, chat.template_kwargs, chat.reasoning.enabled, chat.reasoning.effort
