"""The formats of JSON Schema 2020-12 that Sapwood enforces, as patterns (for whole strings) in the engine's dialect.

Everything else is an annotation by the standard. Sources: RFC 3339 (dates, durations), RFC 5321 (mail), RFC 1123
(hosts), RFC 4291 (IPv6), RFC 3986 and 3987 (URI, IRI), RFC 6570 (templates), RFC 6901 (JSON pointer), RFC 4122 (UUID).
"""

from __future__ import annotations

from collections.abc import Callable

from .patterns import PatternError, to_engine, to_python


def _date() -> str:
    """Every day that exists in the years 0001 to 9999."""
    year = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
    by_4 = "(?:0[48]|[2468][048]|[13579][26])"
    leap = f"(?:[0-9]{{2}}{by_4}|{by_4}00)"
    long, short = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])", "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    days = f"{long}|{short}|02-(?:0[1-9]|1[0-9]|2[0-8])"
    return f"(?:{year}-(?:{days})|{leap}-02-29)"


def _time() -> str:
    """A leap second is the last of a day in UTC."""
    zone = "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
    fraction = r"(?:\.[0-9]{1,18})?"
    return f"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{fraction}{zone}|23:59:60{fraction}[zZ])"


def _duration() -> str:
    clock = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
    date = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
    return f"P(?:{date}(?:{clock})?|{clock}|[0-9]+W)"


_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"


def _ipv6() -> str:
    group = "[0-9a-fA-F]{1,4}"
    tail = f"(?:{group}:{group}|{_IPV4})"
    forms = [f"(?:{group}:){{6}}{tail}"]
    for left in range(8):  # groups before "::", which stands for at least one group
        before = f"(?:{group}(?::{group}){{{left - 1}}})" if left else ""
        rest = 7 - left
        after = [""]
        if rest >= 1:
            after.append(group)
        if rest >= 2:
            after.append(f"(?:{group}:){{0,{rest - 2}}}{tail}")
        forms.append(f"{before}::(?:{'|'.join(after)})")
    return f"(?:{'|'.join(forms)})"


_UCS = r"\x{a0}-\x{d7ff}\x{f900}-\x{fdcf}\x{fdf0}-\x{ffef}\x{10000}-\x{1fffd}\x{20000}-\x{2fffd}\x{30000}-\x{3fffd}"


def _uri(extra: str, *, relative: bool) -> str:
    """extra: characters allowed beside RFC 3986's unreserved ones. relative: a reference, which needs no scheme."""
    encoded = "%[0-9a-fA-F]{2}"
    plain = rf"a-zA-Z0-9\-._~!$\&'()*+,;={extra}"
    char = f"(?:[{plain}:@]|{encoded})"
    user = f"(?:(?:[{plain}:]|{encoded})*@)?"
    host = rf"(?:\[(?:{_ipv6()}|v[0-9a-fA-F]+\.[{plain}:]+)\]|(?:[{plain}]|{encoded})*)"
    authority = f"//{user}{host}(?::[0-9]*)?(?:/{char}*)*"
    absolute = f"/(?:{char}+(?:/{char}*)*)?"
    end = rf"(?:\?(?:{char}|[/?])*)?(?:\#(?:{char}|[/?])*)?"
    full = rf"[a-zA-Z][a-zA-Z0-9+\-.]*:(?:{authority}|{absolute}|{char}+(?:/{char}*)*)?"
    if not relative:
        return full + end
    no_colon = f"(?:[{plain}@]|{encoded})+"
    return f"(?:{full}|{authority}|{absolute}|{no_colon}(?:/{char}*)*)?{end}"


def _uri_template() -> str:
    literal = rf"[!\#$\&(-;=?-\[\]_a-z~{_UCS}]|%[0-9a-fA-F]{{2}}"
    name = r"(?:[A-Za-z0-9_]|%[0-9a-fA-F]{2})(?:\.?(?:[A-Za-z0-9_]|%[0-9a-fA-F]{2}))*"
    variable = rf"{name}(?::[1-9][0-9]{{0,3}}|\*)?"
    return rf"(?:{literal}|\{{[+\#./;?\&=,!@|]?{variable}(?:,{variable})*\}})*"


def _email(local: str, domain: str) -> str:
    quoted = r'"(?:[ !\#-\[\]-\~]|\\[ -\~])*"'
    return rf"(?:{local}+(?:\.{local}+)*|{quoted})@(?:{domain}|\[{_IPV4}\]|\[IPv6:{_ipv6()}\])"


_ATOM = r"[a-zA-Z0-9!\#$%\&'*+\-/=?\^_`\{|\}\~]"
_IDN_ATOM = rf"[a-zA-Z0-9!\#$%\&'*+\-/=?\^_`\{{|\}}\~{_UCS}]"
_IDN_LABEL = rf"[a-zA-Z0-9{_UCS}](?:[a-zA-Z0-9{_UCS}-]{{0,61}}[a-zA-Z0-9{_UCS}])?"
_IDN_HOSTNAME = rf"{_IDN_LABEL}(?:\.{_IDN_LABEL})*"
_POINTER = r"(?:/(?:[^~/]|\~[01])*)*"

FORMATS: dict[str, str] = {
    "date": _date(),
    "time": _time(),
    "date-time": f"{_date()}[tT]{_time()}",
    "duration": _duration(),
    "email": _email(_ATOM, _HOSTNAME),
    "idn-email": _email(_IDN_ATOM, _IDN_HOSTNAME),
    "hostname": _HOSTNAME,
    "idn-hostname": _IDN_HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uri": _uri("", relative=False),
    "uri-reference": _uri("", relative=True),
    "iri": _uri(_UCS, relative=False),
    "iri-reference": _uri(_UCS, relative=True),
    "uri-template": _uri_template(),
    "uuid": "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:\#|{_POINTER})",
}
"""Name to pattern. A leap second and lower-case `t` and `z` are allowed in times; years have four digits."""


def is_regex(text: str) -> bool:
    """A regular expression that some engine here takes."""
    for translate in (to_engine, to_python):
        try:
            translate(text)
        except PatternError:
            continue
        return True
    return False


def is_idn_hostname(text: str) -> bool:
    """Every label has a form in ASCII that the DNS can hold."""
    import idna

    try:
        return len(idna.encode(text, std3_rules=True)) <= 253
    except idna.IDNAError:
        return False


FORMAT_CHECKS: dict[str, Callable[[str], bool]] = {
    "regex": is_regex,
    "idn-hostname": is_idn_hostname,
}
"""What of a format no pattern says; checked beside its pattern, where it has one."""

FORMAT_LENGTHS = {"hostname": 253, "idn-hostname": 253, "email": 320, "idn-email": 320}
"""The most characters that a text of a format may have, where its source says so."""


def is_known(name: str) -> bool:
    return name in FORMATS or name in FORMAT_CHECKS
