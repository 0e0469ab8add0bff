"""A sampling field is declared once; every face has it, and what cannot be made of the declaration is held to it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import NoneType
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

import sapwood
from sapwood.lang.ir import GenOptions
from sapwood.managers.cli.parser import parse
from sapwood.managers.front.requests.request_fields import CompletionFields, GenerateRequest
from sapwood.managers.server.openai.bodies import ChatBody, CompletionBody
from sapwood.runtime.declaration import declared, plain_types
from sapwood.runtime.kernels.bindings import KernelsMissing, Library, library_path
from sapwood.runtime.kernels.sampling import NativeSampler, check_layout
from sapwood.runtime.sampling.params import Sampling, SamplingOptions, SamplingParams

FIELDS = declared(SamplingParams)
IN_LANGUAGE = {name for name, field in declared(CompletionFields).items() if field.language}


def test_every_sampling_field_is_declared_and_travels() -> None:
    assert SamplingParams.__struct_fields__ == Sampling.__struct_fields__ == tuple(FIELDS)
    assert not set(FIELDS) - set(GenerateRequest.__struct_fields__)
    assert all(field.help for field in FIELDS.values())


def test_every_number_has_a_range() -> None:
    numbers = {name for name, kind in plain_types(CompletionFields).items() if kind in (int, float)}
    assert {name for name in numbers if declared(CompletionFields)[name].lowest is None} == set()


def test_the_other_servers_names_are_no_fields_and_mean_one_each() -> None:
    others = [other for field in declared(GenerateRequest).values() for other in field.elsewhere]
    assert len(others) == len(set(others))
    assert not set(others) & set(GenerateRequest.__struct_fields__)


@pytest.mark.parametrize("body", [ChatBody, CompletionBody])
def test_openai_bodies_take_what_is_declared_for_them_and_null_means_absent(body: type[msgspec.Struct]) -> None:
    taken = {field.name: field for field in msgspec.structs.fields(body)}
    wanted = {name for name, field in declared(CompletionFields).items() if field.openai}
    assert wanted - set(taken) == set()
    for name in wanted:
        assert taken[name].default is None
        assert NoneType in [*get_args(taken[name].type), *get_args(get_args(taken[name].type)[0])]


def test_the_command_line_has_every_field_with_a_metavar(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["generate", "--help"])
    shown = capsys.readouterr().out
    wanted = {name: field for name, field in declared(CompletionFields).items() if field.metavar}
    assert {name for name in wanted if f"--{name.replace('_', '-')} {wanted[name].metavar}" not in shown} == set()


def test_gen_takes_every_field_of_the_language_and_none_is_set_unless_given() -> None:
    parameters = inspect.signature(sapwood.gen).parameters
    assert IN_LANGUAGE - set(parameters) == set()
    assert {name for name in IN_LANGUAGE if parameters[name].default is not None} == set()
    assert set(GenOptions.__struct_fields__) == IN_LANGUAGE


def test_the_keywords_that_editors_see_are_the_declared_ones() -> None:
    explicit = {"max_tokens", "stop_token_ids"}  # gen names these itself
    wanted = {name for name in FIELDS if name in IN_LANGUAGE} - explicit
    keywords: dict[str, Any] = get_type_hints(SamplingOptions)
    assert set(keywords) == wanted
    assert {name for name in wanted if keywords[name] != plain_types(SamplingParams)[name] | None} == set()


def test_the_kernels_read_the_declared_numbers() -> None:
    try:
        library = Library(library_path())
    except KernelsMissing as missing:
        pytest.skip(str(missing))
    NativeSampler(library, 1)
    built = [name for name, *_ in library.sampling_struct()._fields_]

    with pytest.raises(KernelsMissing, match="lacks min_p"):
        check_layout(SamplingParams, [name for name in built if name != "min_p"])
    with pytest.raises(KernelsMissing, match="reads no_field, which nothing declares"):
        check_layout(SamplingParams, [*built, "no_field"])


def test_declarations_load_nothing_heavy() -> None:
    code = (
        "import sys, sapwood.managers.front.requests.request_fields; "
        "print(sorted({'torch', 'numpy', 'zmq', 'aiohttp', 'asyncio', 'jinja2'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
