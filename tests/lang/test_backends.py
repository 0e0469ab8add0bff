"""Other people's APIs as backends, against servers that play them, and against Sapwood's own OpenAI endpoints."""

from __future__ import annotations

import re
from typing import Any

import pytest

import sapwood as sgl
from sapwood import Anthropic, OpenAI, ProgramError, ProgramMisuse, ProgramState, RuntimeEndpoint, Unsupported
from sapwood.lang.errors import BackendError


@sgl.function
def chat(s: ProgramState) -> None:
    s += sgl.system("Be brief.") + sgl.user("Hello")
    s += sgl.assistant(sgl.gen("a", max_tokens=5, stop=["x", "y"], temperature=0.5))
    s += sgl.user("And?")
    s += sgl.assistant(sgl.gen("b"))


def chat_answer(texts: list[str], **more: Any) -> dict[str, Any]:
    choices = [
        {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for i, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": 11, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 7}}
    return {"choices": choices, "usage": usage, **more}


# --- OpenAI, chat --------------------------------------------------------------------------------------------------


def test_openai_chat_gets_the_messages(api: Any) -> None:
    api.answer = lambda path, body: chat_answer(["Hi."])
    state = chat.run(backend=OpenAI("gpt", base_url=api.url + "/v1", api_key="secret"))
    (path, headers, first), (_, _, second) = api.calls
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer secret"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert first == {"model": "gpt", "messages": messages, "max_tokens": 5, "stop": ["x", "y"], "temperature": 0.5}
    answered = [*messages, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "And?"}]
    assert second == {"model": "gpt", "messages": answered, "max_tokens": 128}
    counts = {"prompt_tokens": 11, "cached_tokens": 7, "completion_tokens": 3, "finish_reason": "stop"}
    assert state.meta("a") == counts


def test_openai_chat_streams_and_gives_samples_and_logprobs(api: Any) -> None:
    def delta(index: int, content: str | None, reason: str | None = None) -> dict[str, Any]:
        tokens = [{"token": content, "logprob": -0.5, "top_logprobs": [{"token": "no", "logprob": -2.0}]}]
        delta = {"content": content} if content is not None else {"role": "assistant"}
        logprobs = {"content": tokens} if content else None
        return {"choices": [{"index": index, "delta": delta, "finish_reason": reason, "logprobs": logprobs}]}

    events = [delta(0, None), delta(0, "Once"), delta(1, "Twice", "stop"), delta(0, " more", "length")]
    api.answer = lambda path, body: [*events, {"choices": [], "usage": {"prompt_tokens": 4}}, "[DONE]"]

    @sgl.function
    def program(s: ProgramState) -> None:
        s += sgl.user("q") + sgl.assistant(sgl.gen("a", n=2, logprobs=1))

    state = program.run(backend=OpenAI("gpt", base_url=api.url), stream=True)
    assert list(state.text_iter("a")) == ["Once", " more"]
    assert state["a"] == ["Once more", "Twice"]
    meta = state.meta("a")
    assert (meta["finish_reason"], meta["prompt_tokens"]) == (["length", "stop"], 4)
    assert [each["text"] for each in meta["logprobs"][0]] == ["Once", " more"]
    assert meta["logprobs"][1][0]["top"] == [{"token_id": None, "text": "no", "logprob": -2.0}]
    body = api.calls[0][2]
    assert (body["n"], body["logprobs"], body["top_logprobs"], body["stream"]) == (2, True, 1, True)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_that_the_server_has_separated_is_taken_from_it(api: Any, name: str) -> None:
    answer = chat_answer(["four"])
    answer["choices"][0]["message"][name] = "hm, 4"
    api.answer = lambda path, body: answer

    @sgl.function
    def program(s: ProgramState) -> None:
        s += sgl.user("2+2?")
        s += sgl.assistant(sgl.separate_reasoning(sgl.gen("x"), "qwen3"))

    state = program.run(backend=OpenAI("gpt", base_url=api.url))
    assert (state["x"], state["x_reasoning_content"]) == ("four", "hm, 4")


def test_openai_chat_takes_json_schemas(api: Any) -> None:
    api.answer = lambda path, body: chat_answer(["{}"])

    @sgl.function
    def program(s: ProgramState) -> None:
        s += sgl.user("q") + sgl.assistant(sgl.gen("a", json_schema={"type": "object"}))

    program.run(backend=OpenAI("gpt", base_url=api.url))
    schema = {"name": "answer", "schema": {"type": "object"}, "strict": True}
    assert api.calls[0][2]["response_format"] == {"type": "json_schema", "json_schema": schema}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (lambda: sgl.assistant(sgl.gen("x", regex="a+")), "cannot do regex"),
        (lambda: sgl.assistant(sgl.gen("x", ebnf="root ::= 'a'")), "cannot do ebnf"),
        (lambda: sgl.assistant(sgl.gen("x", dtype=int)), "cannot do"),
        (lambda: sgl.assistant(sgl.gen("x", min_p=0.1)), "cannot do min_p"),
        (lambda: sgl.assistant(sgl.gen("x", ignore_eos=True)), "cannot do ignore_eos"),
        (lambda: sgl.assistant(sgl.select("x", ["a", "b"])), "is a chat model, which cannot select"),
        (lambda: sgl.assistant("It is" + sgl.gen("x")), "a gen must be the first thing"),
        (lambda: sgl.assistant(sgl.gen("x") + sgl.gen("y")), "a gen must be the first thing"),
        (lambda: "text" + sgl.gen("x"), "a gen must be the first thing in an assistant's message"),
        (lambda: sgl.user(sgl.gen("x")), "a gen must be the first thing in an assistant's message"),
    ],
)
def test_openai_chat_refuses_at_once_what_it_cannot_do(api: Any, content: Any, sentence: str) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        with pytest.raises(Unsupported, match=sentence):
            s += content()

    program.run(backend=OpenAI("gpt", base_url=api.url))
    assert api.calls == []


def test_text_outside_of_messages_is_refused(api: Any) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += "outside" + sgl.user("q") + sgl.assistant(sgl.gen("x"))

    for backend in (OpenAI("gpt", base_url=api.url), Anthropic("claude", base_url=api.url)):
        with pytest.raises(ProgramError, match="no place for text outside of messages"):
            program.run(backend=backend)
    assert api.calls == []


def test_keys_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ProgramMisuse, match="OPENAI_API_KEY"):
        OpenAI("gpt-4o")
    with pytest.raises(ProgramMisuse, match="ANTHROPIC_API_KEY"):
        Anthropic("claude")
    assert not OpenAI("gpt-3.5-turbo-instruct", api_key="x").chat
    assert OpenAI("gpt-4o", api_key="x").chat


# --- OpenAI, completions, on Sapwood's own server ------------------------------------------------------------------


@sgl.function
def complete(s: ProgramState, method: Any) -> None:
    s += "The capital of France is" + sgl.gen("a", max_tokens=4, temperature=0, logprobs=1)
    s += ". Is it " + sgl.select("b", ["big", "small", "a big one"], choices_method=method) + "?"
    s += sgl.gen("c", max_tokens=3, temperature=0)


@pytest.mark.parametrize("method", ["token_length_normalized", "total_likelihood", "greedy_token_selection"])
def test_completions_say_what_the_native_api_says(endpoint: RuntimeEndpoint, method: str) -> None:
    other = OpenAI(endpoint.model, base_url=f"{endpoint._http.base_url}/v1", chat=False)
    native, openai = complete.run(method, backend=endpoint), complete.run(method, backend=other)
    assert openai.text() == native.text()
    assert openai.meta("b")["scores"] == pytest.approx(native.meta("b")["scores"], abs=1e-4)
    pairs = zip(openai.meta("a")["logprobs"], native.meta("a")["logprobs"], strict=True)
    assert all(one["text"] == two["text"] and abs(one["logprob"] - two["logprob"]) < 1e-4 for one, two in pairs)
    streamed = complete.run(method, backend=other, stream=True)
    assert "".join(streamed.text_iter()) == native.text()
    other.close()


def test_chat_completions_say_what_the_native_api_says(endpoint: RuntimeEndpoint) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        for i in range(2):
            s += sgl.user(f"Name tree {i}.") + sgl.assistant(sgl.gen(f"a{i}", max_tokens=12, temperature=0))

    other = OpenAI(endpoint.model, base_url=f"{endpoint._http.base_url}/v1")
    assert program.run(backend=other).messages() == program.run(backend=endpoint).messages()
    other.close()


def test_completions_refuse_roles_and_unconditional_scores(api: Any) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        with pytest.raises(Unsupported, match="knows no roles"):
            s += sgl.assistant(sgl.gen("x"))
        with pytest.raises(Unsupported, match="without a prompt"):
            s += "a" + sgl.select("x", ["a"], choices_method=sgl.unconditional_likelihood_normalized)
        with pytest.raises(Unsupported, match="cannot do json_schema"):
            s += sgl.gen("x", json_schema={})

    program.run(backend=OpenAI("text", base_url=api.url, chat=False))


def test_a_server_that_cannot_score_is_found_out(api: Any) -> None:
    api.answer = lambda path, body: {"choices": [{"index": i, "text": "", "finish_reason": "stop"} for i in (0, 1)]}

    @sgl.function
    def program(s: ProgramState) -> None:
        s += "a" + sgl.select("x", ["b", "c"])

    with pytest.raises(ProgramError, match="cannot score"):
        program.run(backend=OpenAI("text", base_url=api.url, chat=False))


# --- Anthropic -----------------------------------------------------------------------------------------------------


def test_anthropic_gets_the_messages(api: Any) -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 20, "output_tokens": 2}
    content = [{"type": "text", "text": "Hi."}]
    api.answer = lambda path, body: {"content": content, "stop_reason": "max_tokens", "usage": usage}

    @sgl.function
    def program(s: ProgramState) -> None:
        s += sgl.system("Be brief.") + sgl.user("Hello")
        s += sgl.assistant("Well, " + sgl.gen("a", max_tokens=5, stop="x", temperature=0.5, top_k=3))

    state = program.run(backend=Anthropic("claude", base_url=api.url, api_key="secret"))
    ((path, headers, body),) = api.calls
    assert path == "/v1/messages"
    assert headers["x-api-key"] == "secret"
    assert headers["anthropic-version"] == "2023-06-01"
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Well, "}]
    assert body == {
        "model": "claude",
        "system": "Be brief.",
        "messages": messages,
        "max_tokens": 5,
        "stop_sequences": ["x"],
        "temperature": 0.5,
        "top_k": 3,
    }
    assert state.messages()[-1]["content"] == "Well, Hi."
    counts = {"prompt_tokens": 25, "cached_tokens": 20, "completion_tokens": 2, "finish_reason": "length"}
    assert state.meta("a") == counts


def test_anthropic_streams(api: Any) -> None:
    api.answer = lambda path, body: [
        {"type": "message_start", "message": {"usage": {"input_tokens": 9}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi "}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "you"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]

    @sgl.function
    def program(s: ProgramState) -> None:
        s += sgl.user("Hello") + sgl.assistant(sgl.gen("a"))

    state = program.run(backend=Anthropic("claude", base_url=api.url), stream=True)
    assert list(state.text_iter("a")) == ["Hi ", "you"]
    assert (state.meta("a")["finish_reason"], state.meta("a")["completion_tokens"]) == ("stop", 3)


def test_anthropic_refuses_what_it_cannot_do(api: Any) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        for content, sentence in [
            (sgl.assistant(sgl.select("x", ["a", "b"])), "cannot select"),
            (sgl.assistant(sgl.gen("x", regex="a")), "cannot do regex"),
            (sgl.assistant(sgl.gen("x", n=2)), "cannot do n"),
            (sgl.assistant(sgl.gen("x", frequency_penalty=1.0)), "cannot do frequency_penalty"),
            (sgl.gen("x"), "must be in an assistant's message"),
        ]:
            with pytest.raises(Unsupported, match=sentence):
                s += content
        s += sgl.user("q") + sgl.system("late") + sgl.assistant(sgl.gen("x"))

    with pytest.raises(ProgramError, match="only before all others"):
        program.run(backend=Anthropic("claude", base_url=api.url))
    assert api.calls == []


# --- what goes wrong -----------------------------------------------------------------------------------------------


@sgl.function
def one(s: ProgramState) -> None:
    s += sgl.user("q") + sgl.assistant(sgl.gen("x"))


def test_a_busy_server_is_asked_again(api: Any) -> None:
    answers = iter([(429, {"error": {"message": "slow down"}}), (503, {}), chat_answer(["at last"])])
    api.answer = lambda path, body: next(answers)
    assert one.run(backend=OpenAI("gpt", base_url=api.url))["x"] == "at last"
    assert len(api.calls) == 3


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((400, {"error": {"message": "no such thing", "param": "top_p"}}), "InvalidRequest: no such thing"),
        ((401, {"error": {"message": "who are you"}}), "answered 401: who are you"),
        ((500, {"no": "error"}), 'answered 500: {"no": "error"}'),
        ({"choices": []}, "gave no choices"),
    ],
)
def test_a_refusal_is_an_error_with_the_servers_words(api: Any, answer: Any, sentence: str) -> None:
    api.answer = lambda path, body: answer
    with pytest.raises(ProgramError, match=re.escape(sentence)):
        one.run(backend=OpenAI("gpt", base_url=api.url))


def test_a_stream_that_breaks_off_is_an_error(api: Any) -> None:
    part = {"choices": [{"index": 0, "delta": {"content": "Once"}, "finish_reason": None}]}
    for events, sentence in [
        ([part], "ended a stream before its completion"),
        ([part, {"error": {"message": "out of memory", "code": None}}], "out of memory"),
    ]:
        api.answer = lambda path, body, events=events: events
        with pytest.raises(ProgramError, match=sentence):
            list(one.run(backend=OpenAI("gpt", base_url=api.url), stream=True).text_iter("x"))


def test_nobody_there_is_said_at_once(api: Any) -> None:
    with pytest.raises(BackendError, match=r"No answer from http://127\.0\.0\.1:9"):
        RuntimeEndpoint("http://127.0.0.1:9")
    with pytest.raises(BackendError, match="must start with http"):
        RuntimeEndpoint("localhost")
    with pytest.raises(BackendError, match="is no Sapwood server"):
        RuntimeEndpoint(api.url)
    with pytest.raises(ProgramError, match="No answer from"):
        one.run(backend=OpenAI("gpt", base_url="http://127.0.0.1:9"))


def test_an_address_that_is_meant_for_openais_clients_is_understood(endpoint: RuntimeEndpoint) -> None:
    address = endpoint._http.base_url
    for base_url in (f"{address}/v1", f"{address}/v1/", f"{address}/"):
        backend = RuntimeEndpoint(base_url)
        assert (backend.model, backend._http.base_url) == (endpoint.model, address)
        backend.close()


@pytest.mark.parametrize("content", [sgl.select("x", ["a", "b"]), "text" + sgl.gen("x"), sgl.gen("x", regex="a")])
def test_what_openais_api_lacks_points_at_the_backend_that_has_it(content: Any) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += content

    with pytest.raises(Unsupported, match=r'use RuntimeEndpoint\("http://127\.0\.0\.1:9"\), which can'):
        program.run(backend=OpenAI("smollm2", base_url="http://127.0.0.1:9/v1"))
    with pytest.raises(Unsupported) as caught:
        program.run(backend=OpenAI("gpt", api_key="key"))
    assert "Sapwood" not in str(caught.value)


def test_a_server_that_falls_silent_is_given_up(api: Any) -> None:
    api.seconds = 5.0
    with pytest.raises(ProgramError, match="did not answer in time"):
        one.run(backend=OpenAI("gpt", base_url=api.url, timeout=0.2))
