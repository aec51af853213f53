"""Takes secrets out of what is recorded: commands, variables, messages, quoted lines.

What is launched keeps its values; this is for what is written down and shown. Redacting twice changes nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from traceops.core.secret_names import Secrecy, is_drawn, secrecy_of

MARK = "***"

# Text without any of these is left as it is, at the speed of one search.
_HINT = re.compile(
    r"key|token|secret|pass|pwd|credential|auth|cookie|sig|jwt|bearer|basic|wandb|:/"
    r"|hf_|sk[-_]|rk_|gh[pousr]_|github_pat|glpat|AKIA|ASIA|eyJ|xox|xapp|AIza|ya29|npm_|pypi-"
    r"|nvapi|dckr|hvs\.|PRIVATE|-u |--user",
    re.IGNORECASE,
)  # fmt: skip

# Values that say themselves what they are.
_SHAPES = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      hf_[A-Za-z0-9]{20,}
    | (?<!-)sk-(?=[\w-]{0,60}\d)[\w-]{16,}
    | [sr]k_(?:live|test)_[A-Za-z0-9]{10,}
    | gh[pousr]_[A-Za-z0-9]{20,}
    | github_pat_[A-Za-z0-9_]{20,}
    | gl(?:pat|dt|rt|cbt|ptt|ft|soat)-[\w-]{16,}
    | (?:AKIA|ASIA)[A-Z0-9]{16}
    | eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?
    | xox[abeoprs]-[\w-]{10,} | xapp-[\w-]{10,}
    | AIza[\w-]{30,} | ya29\.[\w-]{20,}
    | npm_[A-Za-z0-9]{30,} | pypi-[\w-]{30,} | nvapi-[\w-]{20,} | dckr_pat_[\w-]{20,} | hvs\.[\w-]{20,}
    )""",
    re.VERBOSE,
)
_PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----).*?(-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)", re.DOTALL
)
_WANDB = re.compile(r"(wandb[^\n]{0,80}?(?<![0-9a-f]))[0-9a-f]{40}(?![0-9a-f])", re.IGNORECASE)
_URL_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{1,30}:/{1,2})(?!git@)[^\s/@\"'<>]{1,2000}(?:@[^\s/@\"'<>]{1,2000})*@")
_BARE_SCHEME = re.compile(r"\b(Bearer|Basic)\s+([\w.~+/-]{16,}=*)")
_USER_OPTION = re.compile(r"((?:^|\s)(?:-u|--user)[ =][\"']?)([^\s:\"']+:[^\s\"']+)")

# A name and the sign after it; it begins where no other does, so that long words cost no more than short ones.
_NAMED = re.compile(
    r"""(?<![\w.-])(?P<dashes>-{0,2})(?P<name>[A-Za-z_][\w.-]*)
    (?P<sign>\\{0,8}["']?\]?\s{0,8}(?:=>|[:=])\s{0,8}|\s{1,8})(?P<open>\\{0,8}["'])?""",
    re.VERBOSE,
)
_QUOTED = re.compile(r"(?:(?!\\{0,8}[\"'])[^\n])*")
_BARE = re.compile(r"\[\w{1,30}\]|[^\s,;&\"'}\])<>]*")
_TO_THE_END = re.compile(r"[^\"'\n\r]*")
_JUDGED = 1000  # characters of a value: one that is longer is no word
_OPTION = re.compile(r"(?P<start>-{0,2}(?P<name>[A-Za-z_+~][\w.+-]*)=)(?P<value>.*)", re.DOTALL)
_SCHEME = re.compile(r"(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey)\s+", re.IGNORECASE)
_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})


def redact_text(text: str) -> str:
    """A line, a message or several lines without the secrets that they hold, each of which becomes ***."""
    if _HINT.search(text) is None:
        return text
    text = _PRIVATE_KEY.sub(rf"\1{MARK}\2", text)
    text = _URL_USER.sub(rf"\1{MARK}@", text)
    text = _SHAPES.sub(MARK, text)
    text = _WANDB.sub(rf"\1{MARK}", text)
    text = _USER_OPTION.sub(_user, text)
    text = _assigned(text)
    return _BARE_SCHEME.sub(lambda found: f"{found[1]} {MARK}" if is_drawn(found[2]) else found[0], text)


def redact_words(words: Sequence[str]) -> list[str]:
    """The words of a command: also a value that is a word of its own after its option."""
    redacted: list[str] = []
    before = Secrecy.NEVER
    for word in words:
        if not word.startswith("-") and before.hides(word):
            redacted.append(MARK)
        elif (option := _OPTION.fullmatch(word)) and secrecy_of(option["name"]).hides(option["value"]):
            redacted.append(option["start"] + MARK)
        else:
            redacted.append(redact_text(word))
        is_option = word.startswith("-") and "=" not in word and not any(map(str.isspace, word))
        before = secrecy_of(word) if is_option else Secrecy.NEVER
        if word in ("-u", "--user"):
            redacted[-1], before = word, Secrecy.NEVER
        elif len(redacted) > 1 and words[len(redacted) - 2] in ("-u", "--user"):
            redacted[-1] = redact_text(f"-u {word}")[len("-u ") :]
    return redacted


def redact_value(value: Any, name: str = "") -> Any:
    """Plain data as JSON holds it, at any depth: texts by the key before them, lists of texts as words of a command."""
    if isinstance(value, str):
        return MARK if secrecy_of(name).hides(value) else redact_text(value)
    if isinstance(value, Mapping):
        return {redact_text(key) if isinstance(key, str) else key: redact_value(item, str(key))
                for key, item in value.items()}  # fmt: skip
    if isinstance(value, (list, tuple)):
        if all(isinstance(item, str) for item in value):
            hides = secrecy_of(name).hides
            return [MARK if hides(word) else word for word in redact_words(value)]
        return [redact_value(item, name) for item in value]
    return value


def _user(found: re.Match[str]) -> str:
    """`-u name:password` of curl; ids of a user and a group, as docker takes them, are none."""
    return found[0] if found[2].replace(":", "").isdigit() else found[1] + MARK


def _assigned(text: str) -> str:
    """Values after names: what comes after a value that stays is looked at again, it may be a name itself."""
    made, at = [], 0
    while (found := _NAMED.search(text, at)) is not None:
        start, end = _hidden(found)
        made.append(text[at:start])
        if end > start:
            made.append(MARK)
        at = end
    made.append(text[at:])
    return "".join(made)


def _hidden(found: re.Match[str]) -> tuple[int, int]:
    """Where the secret after a name begins and ends; nothing right after the name where there is none."""
    name, text = found["name"], found.string
    nothing = found.end("name"), found.end("name")
    secrecy = secrecy_of(name) if len(name) <= _JUDGED else Secrecy.NEVER
    if secrecy is Secrecy.NEVER:
        return nothing
    apart = not found["sign"].strip()  # by a blank alone
    if apart and not found["dashes"]:  # words beside each other: most are prose
        secrecy = Secrecy.IF_DRAWN
    start = found.end()
    if not apart and name.lower() in _HEADERS:
        scheme = _SCHEME.match(text, start)
        start = scheme.end() if scheme else start
        value = _TO_THE_END
    else:
        value = _QUOTED if found["open"] else _BARE
    judged = value.match(text, start, start + _JUDGED)
    if judged is None or (apart and judged[0].startswith("-")) or not secrecy.hides(judged[0]):
        return nothing
    whole = value.match(text, start)
    assert whole is not None
    return start, whole.end()
