"""How one family of models writes its tool calls, as a small description from which grammar, parser and text derive.

Plain data and text only. In the texts of a format stand NAME, ID and ARGUMENTS for what differs from call to call, and
LINE for a line's end that may be missing. Marks that are single control tokens of a model's vocabulary are found by
`for_vocabulary`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

NAME, ID, ARGUMENTS, LINE = "\ue000", "\ue001", "\ue002", "\ue003"
_PLACES = re.compile(f"([{NAME}{ID}{ARGUMENTS}{LINE}])")

STAND_INS = "\ud800"
"""The first of the characters that stand for control tokens in a completion's text. They are lone surrogates, which no
text holds: what a model spells out in plain tokens is never taken for one."""

Tools = Sequence[Mapping[str, Any]]
Parts = list[Any]
"""Marks as a grammar takes them: text, ids of control tokens, and {"regex": …}."""


@dataclass(frozen=True)
class FieldStyle:
    """Arguments that are written one by one: open, the key, a value between its marks; `separator` between two.

    text and text_close are around a string, which stands as it is; json and json_close around any other value, which is
    JSON. Where `quoted`, strings are quoted like JSON's and every value is JSON, or looks like it.
    end: what ends a string: no string holds it. words: true, false and null as this format may write them, too.
    by_name: the arguments come in the order of their names.
    """

    open: str
    text: str
    text_close: str
    json: str
    json_close: str
    separator: str = ""
    quoted: bool = False
    end: str = ""
    words: tuple[str, ...] = ()
    by_name: bool = False

    @property
    def tells_apart(self) -> bool:
        """Whether the marks say if a value is a string."""
        return self.text != self.json


@dataclass(frozen=True)
class ToolFormat:
    """One way of writing calls.

    call: a call, from its beginning to its end. opens: what stands before the first one ("": nothing, with others: may
    be missing). separator, close: between two, and after the last. triggers: how calls begin; what follows is text no
    longer. fields: how arguments are written that are not one JSON object.
    is_object: a call is a JSON object, which is read whatever the order of its keys and the whitespace in it, alone or
    in a list, up to `object_end`. names, arguments: what its keys may be called.
    signs: groups of texts; a template that has all of one group, and none of `without`, means this format.
    id_pattern: what an id looks like where the model writes one; id_form: the id that this makes, with NAME and ID.
    short_ids: templates of this family take ids of nine letters and digits only.
    example: a call as it is shown to a model whose template shows none.
    channels: calls are messages among others; see `channels`. more_marks: texts beside those above that may be control
    tokens. marks: what stands for each in a completion's text, by the model's vocabulary.
    """

    name: str
    call: str
    triggers: tuple[str, ...]
    signs: tuple[tuple[str, ...], ...] = ()
    without: tuple[str, ...] = ()
    opens: tuple[str, ...] = ("",)
    separator: str = ""
    close: str = ""
    fields: FieldStyle | None = None
    is_object: bool = False
    object_end: str = ""
    names: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")  # models mix the two up
    id_pattern: str = ""
    id_form: str = ID
    short_ids: bool = False
    channels: bool = False
    example: str = ""
    more_marks: tuple[str, ...] = ()
    marks: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def marked(self) -> bool:
        """Whether calls begin with a mark of their own, not just with the start of their JSON."""
        return not any(trigger.startswith("{") for trigger in self.triggers)

    def parts(self, text: str, name: str = "", token_ids: Mapping[str, int] | None = None) -> Parts:
        """A text of this format as a grammar takes it. token_ids: of the characters that stand for control tokens."""
        made: Parts = []
        for piece in _PLACES.split(text):
            if piece == ID:
                made.append({"regex": self.id_pattern})
            elif piece == LINE:
                made.append({"regex": "\\n?"})
            else:
                made += [name] if piece == NAME else _with_tokens(piece, token_ids or {})
        return _joined(made)

    def for_vocabulary(self, control: Mapping[str, int], ends: Sequence[int]) -> tuple[ToolFormat, dict[str, int]]:
        """This format for a model with these control tokens, by their texts, of which `ends` end a completion.

        Returns it with one character for each such mark, and the tokens' ids by these characters. A mark that ends the
        completion is left out: nobody sees it.
        """
        texts = [each for each in control if any(each in text for text in self._texts())]
        texts.sort(key=len, reverse=True)
        stand_ins = {text: chr(ord(STAND_INS) + i) for i, text in enumerate(texts)}
        token_ids = {stand_ins[text]: control[text] for text in texts if control[text] not in ends}
        replaced = {text: "" if control[text] in ends else stand_ins[text] for text in texts}
        return replace(self._mapped(lambda text: _replaced(text, replaced)), marks=replaced), token_ids

    def _texts(self) -> list[str]:
        style = [getattr(self.fields, each.name) for each in fields(FieldStyle)] if self.fields else []
        said = [self.call, self.separator, self.close, self.object_end, *self.triggers, *self.opens, *self.more_marks]
        return [each for each in [*said, *style] if isinstance(each, str)]

    def _mapped(self, change: Any) -> ToolFormat:
        style = self.fields
        if style is not None:
            said = {each.name: getattr(style, each.name) for each in fields(FieldStyle)}
            style = FieldStyle(**{k: change(v) if isinstance(v, str) else v for k, v in said.items()})
        return replace(
            self,
            fields=style,
            call=change(self.call),
            triggers=tuple(map(change, self.triggers)),
            opens=tuple(map(change, self.opens)),
            separator=change(self.separator),
            close=change(self.close),
            object_end=change(self.object_end),
        )

    # --- as text ------------------------------------------------------------------------------------------------------

    def written(self, calls: Sequence[tuple[str, str]]) -> str:
        """Calls, each a name and its arguments as JSON text, as the model would have written them."""
        texts = [self._written(name, arguments, i) for i, (name, arguments) in enumerate(calls)]
        return _plain(self.opens[0]) + _plain(self.separator).join(texts) + _plain(self.close)

    def _written(self, name: str, arguments: str, index: int) -> str:
        text = arguments if self.fields is None else _as_fields(self.fields, arguments)
        call = _plain(self.call).replace(ID, str(index) if "0-9" in self.id_pattern[:4] else f"call{index:05}")
        return call.replace(NAME, name).replace(ARGUMENTS, text)


def _plain(text: str) -> str:
    return text.replace(LINE, "\n")


def _as_fields(style: FieldStyle, arguments: str) -> str:
    """Arguments, as JSON text, one by one; text that is no object stays as it is."""
    try:
        given = json.loads(arguments)
    except ValueError:
        return arguments
    if not isinstance(given, dict):
        return arguments
    made = []
    for key, value in sorted(given.items()) if style.by_name else given.items():
        if isinstance(value, str) and not style.quoted:
            made.append(f"{style.open}{key}{style.text}{value}{style.text_close}")
        else:
            written = json.dumps(value, ensure_ascii=False)
            made.append(f"{style.open}{key}{style.json}{written}{style.json_close}")
    return _plain(style.separator.join(made))


def _joined(parts: Parts) -> Parts:
    """The same, neighbouring texts as one and nothing empty."""
    made: Parts = []
    for part in (each for each in parts if each != ""):
        if isinstance(part, str) and made and isinstance(made[-1], str):
            made[-1] += part
        else:
            made.append(part)
    return made


def _with_tokens(text: str, token_ids: Mapping[str, int]) -> Parts:
    return _joined([token_ids.get(char, char) for char in text])


def _replaced(text: str, replacements: Mapping[str, str]) -> str:
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


def without_stand_ins(text: str, shown: Mapping[str, str] | None = None) -> str:
    """A text for a user: what stands for control tokens is left out, or shown as these texts."""
    if not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    return "".join((shown or {}).get(char, "") if "\ud800" <= char <= "\udfff" else char for char in text)
