"""Schemas of what bodies hold as plain objects (messages, tools), for the OpenAPI document. They say what is checked at
the door; a chat template may know more keys of a message.
"""

from __future__ import annotations

from typing import Any

_TEXT: dict[str, Any] = {"type": "string"}
_CONTENT = {
    "anyOf": [_TEXT, {"type": "array", "items": {"$ref": "#/components/schemas/ContentPart"}}, {"type": "null"}]
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "ContentPart": {
        "title": "ContentPart",
        "description": "Text, or token ids as they stand.",
        "anyOf": [
            {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": _TEXT},
                "required": ["type", "text"],
            },
            {
                "type": "object",
                "properties": {
                    "type": {"const": "token_ids"},
                    "token_ids": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                },
                "required": ["type", "token_ids"],
            },
        ],
    },
    "ConversationMessage": {
        "title": "ConversationMessage",
        "description": "A message as OpenAI has it; other keys are the chat template's.",
        "type": "object",
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
            "content": _CONTENT,
            "reasoning_content": {"type": ["string", "null"]},
            "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
            "tool_call_id": {"type": ["string", "null"]},
        },
        "required": ["role"],
    },
    "ConversationTool": {
        "title": "ConversationTool",
        "description": "A function, or a custom tool, whose input is text.",
        "type": "object",
        "properties": {
            "type": {"enum": ["function", "custom"]},
            "function": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"},
                    "description": {"type": ["string", "null"]},
                    "parameters": {"type": ["object", "null"]},
                    "strict": {"type": ["boolean", "null"]},
                },
                "required": ["name"],
            },
            "custom": {"type": "object", "properties": {"name": _TEXT}, "required": ["name"]},
        },
    },
    "ConversationBlocks": {
        "title": "ConversationBlocks",
        "description": "A message as Anthropic has it.",
        "type": "object",
        "properties": {
            "role": {"enum": ["user", "assistant", "system"]},
            "content": {"anyOf": [_TEXT, {"type": "array", "items": {"type": "object", "required": ["type"]}}]},
        },
        "required": ["role", "content"],
    },
    "SchemaTool": {
        "title": "SchemaTool",
        "description": "A tool as Anthropic has it.",
        "type": "object",
        "properties": {
            "type": {"enum": ["custom", None]},
            "name": _TEXT,
            "description": _TEXT,
            "input_schema": {"type": "object"},
        },
        "required": ["name", "input_schema"],
    },
}


def _list_of(name: str) -> dict[str, Any]:
    return {"items": {"$ref": f"#/components/schemas/{name}"}}


_OPENAI = {"messages": _list_of("ConversationMessage"), "tools": _list_of("ConversationTool")}
_ANTHROPIC = {"messages": _list_of("ConversationBlocks"), "tools": _list_of("SchemaTool")}
_FIELDS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("ChatBody", "GenerateBody", "RenderBody", "TokenizeBody"), _OPENAI),
    **dict.fromkeys(("MessageBody", "CountBody"), _ANTHROPIC),
}


def described(struct: str) -> dict[str, Any]:
    """What a struct's fields hold, by name, beside what their types say."""
    return _FIELDS.get(struct, {})
