"""Generations that must fit: what `gen` accepts as a schema, and that the values of all kinds match."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import jsonschema
import msgspec
import pydantic
import pytest

import sapwood as sgl
from sapwood import ProgramState, RuntimeEndpoint
from sapwood.lang.words.python_types import schema_of


class Kind(Enum):
    OWL = "owl"
    FOX = "fox"


@dataclass
class Animal:
    kind: Kind
    age: int
    tame: bool


class Card(TypedDict):
    title: Literal["one", "two"]
    animals: NotRequired[Annotated[list[Animal], msgspec.Meta(max_length=1)]]


class Struct(msgspec.Struct):
    x: int


class Model(pydantic.BaseModel):
    kind: Kind
    age: int = pydantic.Field(ge=0, le=99)


FEW = Annotated[list[Kind], msgspec.Meta(max_length=2)]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize("wanted", [SCHEMA, json.dumps(SCHEMA), Animal, Card, Struct, Model, list[Kind], True])
def test_schemas_come_from_many_things(wanted: Any) -> None:
    schema = schema_of(wanted)
    jsonschema.Draft202012Validator.check_schema(schema)
    json.dumps(schema)


def test_only_types_are_closed() -> None:
    class Open(pydantic.BaseModel, extra="allow"):
        properties: Model

    schema = schema_of(Open)
    assert schema["additionalProperties"] is True
    assert schema["$defs"]["Model"]["additionalProperties"] is False
    assert set(schema["properties"]) == {"properties"}
    assert schema_of(dict[str, Animal])["additionalProperties"] == {"$ref": "#/$defs/Animal"}
    plain = {"type": "object", "properties": {"a": {}}}
    assert schema_of(plain) == plain


@pytest.mark.parametrize("wanted", [SCHEMA, Animal, Card, Model, FEW])
def test_values_match_their_schemas(endpoint: RuntimeEndpoint, wanted: Any) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += "The card, in JSON: " + sgl.gen("x", json_schema=wanted, max_tokens=80, temperature=0)

    state = program.run(backend=endpoint)
    assert state.meta("x")["finish_reason"] == "stop"
    jsonschema.validate(json.loads(state["x"]), schema_of(wanted))


@pytest.mark.parametrize(("dtype", "longest"), [(int, 20), (float, 31)])
def test_numbers_do_not_run_away(endpoint: RuntimeEndpoint, dtype: Any, longest: int) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += "1000000000000000000000000000000000000000000000000"
        s += sgl.gen("x", dtype=dtype, max_tokens=80, temperature=0)

    state = program.run(backend=endpoint)
    assert state.meta("x")["finish_reason"] == "stop"
    assert isinstance(state["x"], str)
    assert len(state["x"]) <= longest
    dtype(state["x"])


def test_values_match_their_grammars_in_branches(endpoint: RuntimeEndpoint) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += "Two numbers: "
        forks = s.fork(3)
        forks[0] += sgl.gen("x", ebnf='root ::= "<" [0-9] "," [0-9] ">"')
        forks[1] += sgl.gen("x", regex=r"\([0-9],[0-9]\)")
        forks[2] += sgl.gen_int("x") + " and " + sgl.gen("y", dtype=float, max_tokens=8)
        forks.join()

    state = program.run(backend=endpoint, temperature=1.0, seed=4)
    first, second, third = state["x"]
    assert first[0] + first[2] + first[4] == "<,>"
    assert second[0] + second[2] + second[4] == "(,)"
    int(third)
    float(state["y"][0])
