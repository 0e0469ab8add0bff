"""What asks for nothing is taken and listed; what would change an answer is refused by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.managers.front.requests.bodies import decode_tolerant
from sapwood.managers.front.requests.tolerated import CHAT_TOLERATED, TEXT_TOLERATED, TOLERATED
from sapwood.managers.server.native.routes import GenerateBody
from sapwood.managers.server.openai.bodies import ChatBody, CompletionBody
from sapwood.managers.wire.errors import InvalidRequest
from sapwood.runtime.sampling.recommendation import SamplingDefaults

HEADER = "X-Sapwood-Ignored-Fields"
CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
BASES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi"},
    GENERATE: {"prompt": "hi"},
}
STRUCTS = {
    CHAT: (ChatBody, CHAT_TOLERATED),
    COMPLETIONS: (CompletionBody, TEXT_TOLERATED),
    GENERATE: (GenerateBody, TOLERATED),
}
ODD = {"what": ["no", "server", "asks"]}
ADVISORY: list[tuple[str, Any]] = [
    ("metadata", {"a": "b"}),
    ("prompt_cache_key", "k"),
    ("prompt_cache_retention", "24h"),
    ("safety_identifier", "u1"),
    ("store", True),
    ("service_tier", "flex"),
    ("verbosity", "low"),
    ("use_beam_search", False),
    ("length_penalty", 1.0),
    ("early_stopping", False),
    ("mirostat", 0),
    ("mirostat_tau", 5.0),
    ("typical_p", 1),
    ("tfs_z", 1.0),
    ("dry_multiplier", 0.0),
    ("xtc_probability", 0),
    ("keep_alive", "5m"),
    ("guided_decoding_backend", "xgrammar"),
]


async def posted(client, path: str, **fields: Any) -> tuple[int, Any, str | None]:
    async with client.session.post(client.url + path, json={**BASES[path], **fields}) as response:
        text = await response.text()
        return response.status, text if fields.get("stream") else json.loads(text), response.headers.get(HEADER)


@pytest.mark.fast
@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize(("name", "value"), ADVISORY)
async def test_a_field_that_asks_for_nothing_is_listed(client, front, path, name, value):
    status, answer, listed = await posted(client, path, **{name: value})
    assert (status, listed) == (200, name), answer
    async with client.session.get(client.url + "/metrics") as response:
        assert f'sapwood_ignored_fields_total{{field="{name}"}} 1.0' in await response.text()


@pytest.mark.fast
async def test_a_stream_lists_them_too_and_an_answer_without_any_has_no_header(client, front):
    both = {"user": "me", "stream_options": {"include_obfuscation": False}, "top_k": 3, "metadata": {}}
    status, _, listed = await posted(client, CHAT, stream=True, **both)
    assert (status, listed) == (200, "metadata, user, stream_options.include_obfuscation")
    assert front.submits[-1].sampling.top_k == 3
    assert (await posted(client, CHAT, top_k=3))[2] is None
    assert (await posted(client, CHAT, metadata=None))[2] is None


@pytest.mark.fast
@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize("name", [name for name, each in TOLERATED.items() if each.values is not None])
def test_another_value_is_refused_and_those_allowed_are_named(path, name):
    struct, table = STRUCTS[path]
    if name in struct.__struct_encode_fields__:
        return
    for value in (*(table[name].values or ()), None):
        made = decode_tolerant(json.dumps({name: value, **BASES[path]}).encode(), struct)
        assert made.body == decode_tolerant(json.dumps(BASES[path]).encode(), struct).body
        assert made.ignored == (() if value is None else (name,))
    for value in (ODD, 17, not (table[name].values or (False,))[0]):
        with pytest.raises(InvalidRequest) as caught:
            decode_tolerant(json.dumps({**BASES[path], name: value}).encode(), struct)
        assert caught.value.field == name
        assert "may only be" in str(caught.value)
        assert all(json.dumps(each) in str(caught.value) for each in table[name].values or ())


@pytest.mark.fast
@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        (CHAT, "metadatas", {}),
        (CHAT, "use_beam_search", True),
        (CHAT, "use_beam_search", 0),
        (CHAT, "length_penalty", True),
        (COMPLETIONS, "mirostat", 2),
        (GENERATE, "dry_multiplier", 0.8),
        (CHAT, "allowed_token_ids", [1]),
        (CHAT, "reasoning_effort", "extreme"),
        (CHAT, "stream_options", {"obfuscate": True}),
    ],
)
async def test_what_would_change_the_answer_is_refused(client, path, name, value):
    status, answer, listed = await posted(client, path, **{"metadata": {}, name: value, "stream": False})
    assert (status, listed) == (400, None)
    assert answer["error"]["param"].partition(".")[0] == name
    assert name in answer["error"]["message"]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("path", "spelled", "plain"),
    [
        (COMPLETIONS, {"n_predict": 3}, {"max_tokens": 3}),
        (COMPLETIONS, {"n_predict": -1}, {"max_tokens": 2**31 - 1}),
        (CHAT, {"max_new_tokens": 3}, {"max_tokens": 3}),
        (CHAT, {"max_completion_tokens": 3, "max_tokens": 3}, {"max_tokens": 3}),
        (CHAT, {"repeat_penalty": 1.5}, {"repetition_penalty": 1.5}),
        (CHAT, {"repeat_penalty": 1.5, "repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        (CHAT, {"guided_json": {"type": "integer"}}, {"json_schema": {"type": "integer"}}),
        (COMPLETIONS, {"guided_regex": "a+"}, {"regex": "a+"}),
        (CHAT, {"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        (GENERATE, {"grammar": 'root ::= "a"'}, {"ebnf": 'root ::= "a"'}),
        (COMPLETIONS, {"guided_grammar": 'root ::= "a"'}, {"ebnf": 'root ::= "a"'}),
        (COMPLETIONS, {"min_new_tokens": 2}, {"min_tokens": 2}),
        (CHAT, {"include_stop_str_in_output": True}, {"include_stop": True}),
        (CHAT, {"extra_key": "x"}, {"cache_salt": "x"}),
        (COMPLETIONS, {"n_probs": 2}, {"logprobs": 2}),
        (CHAT, {"structured_outputs": {"json": {"type": "integer"}}}, {"json_schema": {"type": "integer"}}),
        (CHAT, {"structured_outputs": {"regex": "a+", "disable_any_whitespace": True}}, {"regex": "a+"}),
        (COMPLETIONS, {"structured_outputs": {"choice": ["a"], "grammar": None}}, {"choice": ["a"]}),
        (COMPLETIONS, {"structured_outputs": {"grammar": 'root ::= "a"'}}, {"ebnf": 'root ::= "a"'}),
        (CHAT, {"structured_outputs": {"json_object": True}}, {"json_object": True}),
        (CHAT, {"structured_outputs": {"structural_tag": '{"triggers": []}'}}, {"structural_tag": {"triggers": []}}),
        (
            CHAT,
            {"response_format": {"type": "structural_tag", "triggers": [], "structures": []}},
            {"structural_tag": {"triggers": [], "structures": []}},
        ),
        (
            CHAT,
            {"response_format": {"type": "json_object", "schema": {"type": "integer"}}},
            {"json_schema": {"type": "integer"}},
        ),
        (GENERATE, {"random_seed": 2}, {"seed": 2}),
        (GENERATE, {"rid": "me"}, {"request_id": "me"}),
    ],
)
def test_other_servers_spellings_mean_the_same(path, spelled, plain):
    struct, _ = STRUCTS[path]
    made, expected = (
        decode_tolerant(json.dumps({**BASES[path], **each}).encode(), struct).body for each in (spelled, plain)
    )
    if isinstance(made, GenerateBody):
        assert made == expected
    else:
        assert made.requests() == expected.requests()


@pytest.mark.fast
@pytest.mark.parametrize("path", BASES)
async def test_a_top_p_of_zero_is_greedy(client, front, path):
    status, answer, listed = await posted(client, path, top_p=0)
    assert (status, listed) == (200, None if path == GENERATE else "top_p"), answer
    assert (front.submits[-1].sampling.temperature, front.submits[-1].sampling.top_p) == (0.0, 1.0)


@pytest.mark.fast
@pytest.mark.parametrize("path", BASES)
async def test_what_a_request_does_not_say_is_as_the_model_recommends(client, front, path):
    front.info.sampling = SamplingDefaults("test", temperature=0.6, top_k=20, repetition_penalty=1.1)
    await posted(client, path, temperature=0.9)
    sampling = front.submits[-1].sampling
    assert (sampling.temperature, sampling.top_k, sampling.repetition_penalty) == (0.9, 20, 1.1)
    for answer in ((await client.get("/v1/models"))[1]["data"][0], (await client.get("/v1/models/fake-model"))[1]):
        assert answer["sampling_defaults"] == {
            "source": "test",
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 1.0,
            "min_p": 0.0,
            "repetition_penalty": 1.1,
        }


@pytest.mark.fast
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs"),
        ({"structured_outputs": {"disable_any_whitespace": True}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs[1]"),
        ({"structured_outputs": {"regex": "a"}, "regex": "a"}, "regex"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"structured_outputs": None}, None),
    ],
)
async def test_structured_outputs_hold_one_constraint(client, fields, param):
    status, answer, _ = await posted(client, CHAT, **fields)
    assert (status, answer.get("error", {}).get("param")) == (200 if param is None else 400, param), answer


@pytest.mark.fast
@pytest.mark.parametrize("path", BASES)
async def test_who_wants_nothing_cached_has_a_namespace_of_its_own(client, front, path):
    for fields in ({"cache_prompt": False}, {"cache_prompt": False}, {"cache_prompt": True}, {"cache_salt": "a"}):
        status, answer, listed = await posted(client, path, **fields)
        assert (status, listed) == (200, None), answer
    one, other, shared, salted = (submit.namespace for submit in front.submits)
    assert len({one, other, shared, salted}) == 4
    assert (shared, salted) == ("", "a")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("prediction", "text"),
    [
        ({"type": "content", "content": "x = 1"}, "x = 1"),
        ({"type": "content", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": " = 1"}]}, "x = 1"),
        (None, ""),
    ],
)
async def test_a_prediction_is_handed_on(client, front, prediction, text):
    assert (await posted(client, CHAT, prediction=prediction))[0] == 200
    assert front.submits[-1].prediction == text


@pytest.mark.fast
@pytest.mark.parametrize("prediction", ["x", {}, {"type": "text", "content": "x"}, {"type": "content", "content": 5}])
async def test_what_is_no_prediction_is_refused(client, prediction):
    status, answer, _ = await posted(client, CHAT, prediction=prediction)
    assert (status, answer["error"]["param"].partition(".")[0]) == (400, "prediction")


@pytest.mark.fast
async def test_errors_name_a_field_as_the_body_does(client):
    status, answer, _ = await posted(client, CHAT, repeat_penalty=-1)
    assert (status, answer["error"]["param"]) == (400, "repeat_penalty")
    assert answer["error"]["message"].startswith("repeat_penalty must be between")
    status, answer, _ = await posted(client, CHAT, repeat_penalty=2, repetition_penalty=3)
    assert (status, answer["error"]["param"]) == (400, "repeat_penalty")


@pytest.mark.fast
@given(st.dictionaries(st.sampled_from([*TOLERATED, "top_k", "nobody", "n_predict"]), st.integers(-2, 2), max_size=6))
def test_every_field_is_acted_on_listed_or_refused(fields):
    data = json.dumps({**fields, **BASES[CHAT]}).encode()
    made, refused = None, None
    try:
        made = decode_tolerant(data, ChatBody)
    except InvalidRequest as error:
        refused = error.field
    if made is None:
        assert refused in fields
        return
    acted = {name for name in ("top_k", "max_tokens") if getattr(made.body, name) is not None}
    acted = {"n_predict" if name == "max_tokens" else name for name in acted}
    assert {*fields} - {*made.ignored} - acted <= {"n_predict"}
    assert "nobody" not in fields
