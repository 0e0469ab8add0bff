"""The formats of tool calls that there are: one entry for each."""

from __future__ import annotations

from .tool_format import ARGUMENTS, ID, LINE, NAME, FieldStyle, ToolFormat

HERMES = ToolFormat(
    "hermes",
    f'<tool_call>\n{{"name": "{NAME}", "arguments": {ARGUMENTS}}}\n</tool_call>',
    ("<tool_call>",),
    signs=(("<tool_call>",), ("xml_tools",)),
    separator="\n",
    is_object=True,
    object_end="</tool_call>",
    example='<tool_call>\n{"name": <function-name>, "arguments": <arguments-object>}\n</tool_call>',
)
SMOLLM2 = ToolFormat(
    "smollm2",
    f'<tool_call>[{{"name": "{NAME}", "arguments": {ARGUMENTS}}}]</tool_call>',
    ("<tool_call>",),
    signs=(("<tool_call>[",),),
    separator="\n",
    is_object=True,
    object_end="</tool_call>",
    example='<tool_call>[{"name": <function-name>, "arguments": <arguments-object>}]</tool_call>',
)
LLAMA3 = ToolFormat(
    "llama3",
    f'{{"name": "{NAME}", "parameters": {ARGUMENTS}}}',
    ('{"name": "', "<|python_tag|>"),
    signs=(("<|python_tag|>",), ("ipython", '"parameters": ')),
    opens=("", "<|python_tag|>"),
    separator="; ",
    is_object=True,
    example='{"name": <function-name>, "parameters": <arguments-object>}',
)
_NINE = "[a-zA-Z0-9]{9}"
MISTRAL = ToolFormat(
    "mistral",
    f"[TOOL_CALLS]{NAME}[ARGS]{ARGUMENTS}",
    ("[TOOL_CALLS]",),
    signs=(("[TOOL_CALLS]", "[ARGS]"),),
    short_ids=True,
)
MISTRAL_IDS = ToolFormat(
    "mistral-ids",
    f"[TOOL_CALLS]{NAME}[CALL_ID]{ID}[ARGS]{ARGUMENTS}",
    ("[TOOL_CALLS]",),
    signs=(("[TOOL_CALLS]", "[CALL_ID]"),),
    id_pattern=_NINE,
    short_ids=True,
)
MISTRAL_LIST = ToolFormat(
    "mistral-list",
    f'{{"name": "{NAME}", "arguments": {ARGUMENTS}}}',
    ("[TOOL_CALLS]",),
    signs=(("[TOOL_CALLS]",),),
    opens=("[TOOL_CALLS][", "[TOOL_CALLS] ["),
    separator=", ",
    close="]",
    is_object=True,
    short_ids=True,
)
_PYTHON_WORDS = ("True", "False", "None")
QWEN3_CODER = ToolFormat(
    "qwen3-coder",
    f"<tool_call>\n<function={NAME}>\n{ARGUMENTS}</function>\n</tool_call>",
    ("<tool_call>",),
    signs=(("<tool_call>", "<function=", "<parameter="),),
    separator="\n",
    fields=FieldStyle(
        "<parameter=", ">\n", "\n</parameter>\n", ">\n", "\n</parameter>\n", end="</parameter>", words=_PYTHON_WORDS
    ),
)
SEED_OSS = ToolFormat(
    "seed-oss",
    f"<seed:tool_call>\n<function={NAME}>\n{ARGUMENTS}</function>\n</seed:tool_call>",
    ("<seed:tool_call>",),
    signs=(("<seed:tool_call>",),),
    separator="\n",
    fields=FieldStyle(
        "<parameter=", ">", "</parameter>\n", ">", "</parameter>\n", end="</parameter>", words=_PYTHON_WORDS
    ),
)
_ARG = (f"</arg_key>{LINE}<arg_value>", f"</arg_value>{LINE}")
GLM = ToolFormat(
    "glm",
    f"<tool_call>{NAME}{LINE}{ARGUMENTS}</tool_call>",
    ("<tool_call>",),
    signs=(("<arg_key>",),),
    separator="\n",
    fields=FieldStyle("<arg_key>", *_ARG, *_ARG, end="</arg_value>"),
)
_HY_ARG = ("</arg_key:opensource>\n<arg_value:opensource>", "</arg_value:opensource>\n")
HUNYUAN = ToolFormat(
    "hunyuan",
    f"<tool_call:opensource>{NAME}<tool_sep:opensource>\n{ARGUMENTS}</tool_call:opensource>\n",
    ("<tool_calls:opensource>",),
    signs=((":opensource", "arg_key"),),
    opens=("<tool_calls:opensource>\n",),
    close="</tool_calls:opensource>",
    fields=FieldStyle("<arg_key:opensource>", *_HY_ARG, *_HY_ARG, end="</arg_value:opensource>"),
)


def _invoke(prefix: str) -> tuple[str, FieldStyle]:
    """A call in XML with names as attributes, all its elements with this prefix."""
    value = ('">', f"</{prefix}parameter>\n")
    style = FieldStyle(f'<{prefix}parameter name="', *value, *value, end=f"</{prefix}parameter>")
    return f'<{prefix}invoke name="{NAME}">\n{ARGUMENTS}</{prefix}invoke>\n', style


_MINIMAX_CALL, _MINIMAX_FIELDS = _invoke("")
MINIMAX_M2 = ToolFormat(
    "minimax-m2",
    _MINIMAX_CALL,
    ("<minimax:tool_call>",),
    signs=(("minimax:tool_call", "<invoke name="),),
    opens=("<minimax:tool_call>\n",),
    close="</minimax:tool_call>",
    fields=_MINIMAX_FIELDS,
)
_ATEM_CALL, _ATEM_FIELDS = _invoke("atem:")
MUSE = ToolFormat(
    "muse",
    _ATEM_CALL,
    ("<atem:function_calls>",),
    signs=(("atem:function_calls",), ("atem:invoke",)),
    opens=("<atem:function_calls>\n",),
    close="</atem:function_calls>",
    fields=_ATEM_FIELDS,
)


def _dsml(name: str, section: str) -> ToolFormat:
    end = "</｜DSML｜parameter>\n"
    return ToolFormat(
        name,
        f'<｜DSML｜invoke name="{NAME}">\n{ARGUMENTS}</｜DSML｜invoke>\n',
        (f"<｜DSML｜{section}>",),
        signs=(("｜DSML｜", f"{section}>"),),
        opens=(f"\n\n<｜DSML｜{section}>\n",),
        close=f"</｜DSML｜{section}>",
        fields=FieldStyle(
            '<｜DSML｜parameter name="',
            '" string="true">',
            end,
            '" string="false">',
            end,
            end="</｜DSML｜parameter>",
        ),
    )


DEEPSEEK_V3_2 = _dsml("deepseek-v3.2", "function_calls")
DEEPSEEK_V4 = _dsml("deepseek-v4", "tool_calls")
_DEEPSEEK_OPEN, _DEEPSEEK_CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
DEEPSEEK_R1 = ToolFormat(
    "deepseek-r1",
    f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{NAME}\n```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>",
    (_DEEPSEEK_OPEN,),
    signs=(("tool▁calls▁begin", "```json"),),
    opens=(_DEEPSEEK_OPEN,),
    separator="\n",
    close=_DEEPSEEK_CLOSE,
)
DEEPSEEK_V3_1 = ToolFormat(
    "deepseek-v3.1",
    f"<｜tool▁call▁begin｜>{NAME}<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>",
    (_DEEPSEEK_OPEN,),
    signs=(("tool▁calls▁begin",),),
    opens=(_DEEPSEEK_OPEN,),
    close=_DEEPSEEK_CLOSE,
)
KIMI_K2 = ToolFormat(
    "kimi-k2",
    f"<|tool_call_begin|>functions.{NAME}:{ID}<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|>",
    ("<|tool_calls_section_begin|>",),
    signs=(("<|tool_calls_section_begin|>",),),
    opens=("<|tool_calls_section_begin|>",),
    close="<|tool_calls_section_end|>",
    id_pattern="[0-9]{1,4}",
    id_form=f"functions.{NAME}:{ID}",
)
SOLAR = ToolFormat(
    "solar",
    f"<|tool_call:begin|>{ID}<|tool_call:name|>{NAME}<|tool_call:args|>{ARGUMENTS}<|tool_call:end|>",
    ("<|tool_calls|>",),
    signs=(("<|tool_call:begin|>",),),
    opens=("<|tool_calls|>",),
    close="<|calls|>",
    id_pattern="[a-zA-Z0-9_-]{1,64}",
)
APERTUS = ToolFormat(
    "apertus",
    f'{{"{NAME}": {ARGUMENTS}}}',
    ("<|tools_prefix|>",),
    signs=(("<|tools_prefix|>",),),
    opens=("<|tools_prefix|>[",),
    separator=", ",
    close="]<|tools_suffix|>",
)
LFM2 = ToolFormat(
    "lfm2",
    f"{NAME}({ARGUMENTS})",
    ("<|tool_call_start|>",),
    signs=(("<|tool_call_start|>",), ("<|tool_list_start|>",), ("List of tools: [", "<|im_start|>")),
    opens=("<|tool_call_start|>[",),
    separator=", ",
    close="]<|tool_call_end|>",
    fields=FieldStyle("", "=", "", "=", "", ", ", quoted=True, words=_PYTHON_WORDS),
)
GEMMA = ToolFormat(
    "gemma",
    f"{NAME}({ARGUMENTS})",
    ("```tool_code",),
    signs=(("```tool_code",), ("<start_of_turn>",)),
    without=("<start_function_call>",),
    opens=("```tool_code\n",),
    separator="\n",
    close="\n```",
    fields=FieldStyle("", "=", "", "=", "", ", ", quoted=True, words=_PYTHON_WORDS),
    example="```tool_code\n<function-name>(<argument-name>=<value>, …)\n```",
)


def _gemma(name: str, begin: str, end: str, quote: str, sign: str) -> ToolFormat:
    return ToolFormat(
        name,
        f"{begin}call:{NAME}{{{ARGUMENTS}}}{end}",
        (begin,),
        signs=((sign,),),
        fields=FieldStyle("", f":{quote}", quote, ":", "", ",", end=quote, words=("None",), by_name=True),
    )


GEMMA4 = _gemma("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_call>")
FUNCTION_GEMMA = _gemma(
    "functiongemma", "<start_function_call>", "<end_function_call>", "<escape>", "<start_function_call>"
)
GRANITE = ToolFormat(
    "granite",
    f'{{"name": "{NAME}", "arguments": {ARGUMENTS}}}',
    ("<|tool_call|>",),
    signs=(("<|tool_call|>",),),
    opens=("<|tool_call|>[",),
    separator=", ",
    close="]",
    is_object=True,
)
PHI4 = ToolFormat(
    "phi4",
    f'{{"name": "{NAME}", "arguments": {ARGUMENTS}}}',
    ("<|tool_call|>", "functools"),
    signs=(("<|tool_call|>", "<|/tool_call|>"), ("<|/tool|>",)),
    opens=("<|tool_call|>[",),
    separator=", ",
    close="]<|/tool_call|>",
    is_object=True,
    object_end="<|/tool_call|>",
)
FUNCTOOLS = ToolFormat(
    "functools",
    f'{{"name": "{NAME}", "arguments": {ARGUMENTS}}}',
    ("functools",),
    signs=(("functools[",),),
    opens=("functools[",),
    separator=", ",
    close="]",
    is_object=True,
    example='functools[{"name": <function-name>, "arguments": <arguments-object>}]',
)
FUNCTIONARY_V3_1 = ToolFormat(
    "functionary-v3.1",
    f"<function={NAME}>{ARGUMENTS}</function>",
    ("<function=",),
    signs=(("<function=",),),
    without=("<tool_call>", "<parameter="),
)
FUNCTIONARY_V3_2 = ToolFormat(
    "functionary-v3.2",
    f">>>{NAME}\n{ARGUMENTS}",
    (">>>",),
    signs=((">>>all",),),
)
MINICPM5 = ToolFormat(
    "minicpm5",
    f'<function name="{NAME}">{ARGUMENTS}</function>',
    ("<function name=",),
    signs=(("<function name=", "<param name="), ('<function name="', "<param")),
    separator="\n",
    fields=FieldStyle('<param name="', '">', "</param>", '">', "</param>", end="</param>", words=_PYTHON_WORDS),
)
NEMOTRON_V2 = ToolFormat(
    "nemotron-v2",
    f'{{"name": "{NAME}", "arguments": {ARGUMENTS}}}',
    ("<TOOLCALL>",),
    signs=(("<TOOLCALL>",),),
    opens=("<TOOLCALL>[",),
    separator=", ",
    close="]</TOOLCALL>",
    is_object=True,
    object_end="</TOOLCALL>",
)
APRIEL = ToolFormat(
    "apriel",
    f'{{"name": "{NAME}", "arguments": {ARGUMENTS}}}',
    ("<tool_calls>",),
    signs=(("<tool_calls>[",),),
    opens=("<tool_calls>[",),
    separator=", ",
    close="]</tool_calls>",
    is_object=True,
    object_end="</tool_calls>",
)
MINIMAX_M1 = ToolFormat(
    "minimax-m1",
    f'{{"name": "{NAME}", "arguments": {ARGUMENTS}}}\n',
    ("<tool_calls>",),
    signs=(("<tool_calls>",),),
    opens=("<tool_calls>\n",),
    close="</tool_calls>",
    is_object=True,
    object_end="</tool_calls>",
)
COMMAND_R7B = ToolFormat(
    "command-r7b",
    f'    {{"tool_call_id": "{ID}", "tool_name": "{NAME}", "parameters": {ARGUMENTS}}}',
    ("<|START_ACTION|>",),
    signs=(("<|START_ACTION|>",),),
    opens=("<|START_ACTION|>[\n",),
    separator=",\n",
    close="\n]<|END_ACTION|>",
    is_object=True,
    object_end="<|END_ACTION|>",
    names=("tool_name",),
    id_pattern="[0-9]{1,4}",
    id_form="",
)
COMMAND_R = ToolFormat(
    "command-r",
    f'    {{\n        "tool_name": "{NAME}",\n        "parameters": {ARGUMENTS}\n    }}',
    ("Action: ```json", "Action:\n```json"),
    signs=(("Action:", "```json", "tool_name"),),
    opens=("Action: ```json\n[\n", "Action:\n```json\n[\n"),
    separator=",\n",
    close="\n]\n```",
    is_object=True,
    object_end="```",
    names=("tool_name",),
)
GIGACHAT3_1 = ToolFormat(
    "gigachat3.1",
    f'<|function_call|>{{"name": "{NAME}", "arguments": {ARGUMENTS}}}',
    ("<|function_call|>",),
    signs=(("<|function_call|>",),),
    is_object=True,
)
GIGACHAT3 = ToolFormat(
    "gigachat3",
    f'<|message_sep|>\n\nfunction call<|role_sep|>\n{{"name": "{NAME}", "arguments": {ARGUMENTS}}}',
    ("<|message_sep|>\n\nfunction call<|role_sep|>",),
    signs=(("function call", "<|role_sep|>"),),
    is_object=True,
)
GPT_OSS = ToolFormat(
    "gpt-oss",
    f"<|channel|>commentary to=functions.{NAME} <|constrain|>json<|message|>{ARGUMENTS}<|call|>",
    ("<|channel|>",),
    signs=(("<|channel|>", "commentary", "functions"),),
    channels=True,
    more_marks=("<|start|>", "<|end|>", "<|return|>", "<|message|>"),
)

IN_ORDER = (
    *(GPT_OSS, DEEPSEEK_V3_2, DEEPSEEK_V4, DEEPSEEK_R1, DEEPSEEK_V3_1, KIMI_K2, SOLAR, MISTRAL_IDS, MISTRAL),
    *(MISTRAL_LIST, QWEN3_CODER, SEED_OSS, HUNYUAN, GLM, MINIMAX_M2, MUSE, APERTUS, GEMMA4, FUNCTION_GEMMA, PHI4),
    *(GRANITE, NEMOTRON_V2, APRIEL, MINIMAX_M1, COMMAND_R7B, COMMAND_R, GIGACHAT3_1, GIGACHAT3, MINICPM5),
    *(FUNCTIONARY_V3_2, FUNCTIONARY_V3_1, FUNCTOOLS, SMOLLM2, HERMES, LLAMA3, LFM2, GEMMA),
)
"""From the most particular signs to the most general ones."""

BY_NAME = {each.name: each for each in IN_ORDER}
TOOL_FORMATS = tuple(sorted(BY_NAME))
