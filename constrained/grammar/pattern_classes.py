"""What the classes \\d, \\w and \\s of regular expressions hold, and their complements, by who reads them.

ECMA 262 and Python's `re` disagree on \\s, and Python and Rust take Unicode letters for \\w where ECMA does not.
"""

from __future__ import annotations

_SPACE = r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # in ECMA's \s and in Python's
_ONLY_ECMA, _ONLY_PYTHON = r"\ufeff", r"\x1c-\x1f\x85"
END = chr(0x10FFFF)
EXACT = {  # as ECMA has it, for use inside [...]
    "d": "0-9",
    "D": rf"\x00-/:-{END}",
    "w": "A-Za-z0-9_",
    "W": rf"\x00-/:-@\[-\^`{{-{END}",
    "s": _SPACE + _ONLY_ECMA,
    "S": (
        r"\x00-\x08\x0e-\x1f!-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff"
        rf"\u3001-\ufefe\uff00-{END}"
    ),
}
NARROW = {  # what everybody takes for it
    "d": "0-9",
    "D": r"[^\p{Nd}]",
    "w": "A-Za-z0-9_",
    "W": r"[^\p{L}\p{M}\p{N}\p{Pc}]",
    "s": _SPACE,
    "S": rf"[^{_SPACE}{_ONLY_ECMA}{_ONLY_PYTHON}]",
}
WIDE = {  # what somebody takes for it
    "d": r"\p{Nd}",
    "D": "[^0-9]",
    "w": r"\p{L}\p{M}\p{N}\p{Pc}",
    "W": "[^A-Za-z0-9_]",
    "s": _SPACE + _ONLY_ECMA + _ONLY_PYTHON,
    "S": rf"[^{_SPACE}]",
}
ANY = r"[^\n\r\u2028\u2029]"
