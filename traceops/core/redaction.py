"""Takes secrets out of what is recorded: commands, variables, messages, quoted lines.

What is launched keeps its values; this is for what is written down and shown. Redacting twice changes nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from traceops.core.secret_names import Secrecy, is_drawn, is_key_like, secrecy_of
from traceops.core.secret_shapes import SHAPES, WEBHOOKS

MARK = "***"

# Text without any of these is left as it is, at the speed of one search.
_HINT = re.compile(
    r"key|token|secret|pass|pwd?\b|_pw|credential|auth|cookie|sig|jwt|bearer|basic|wandb|login|hook|mysql|:/|PRIVATE"
    r"|-u |--user",
    re.IGNORECASE,
)
_HINTS = tuple(dict.fromkeys(hint for _, hints, _ in SHAPES for hint in hints.split()))

# Values that say themselves what they are.
_SHAPES = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(shape for _, _, shape in SHAPES)})")
_WEBHOOK = re.compile(rf"({'|'.join(WEBHOOKS)})[^\s\"'<>]+")
_PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----).*?(-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)", re.DOTALL
)
_WANDB = re.compile(r"(wandb[^\n]{0,80}?(?<![0-9a-f]))[0-9a-f]{40}(?![0-9a-f])", re.IGNORECASE)
_URL_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{1,30}:/{1,2})(?!git@)[^\s/@\"'<>]{1,2000}(?:@[^\s/@\"'<>]{1,2000})*@")
_BARE_SCHEME = re.compile(r"\b(Bearer|Basic)\s+([\w.~+/-]{16,}=*)")
_SSHPASS = re.compile(r"(\bsshpass\s+-p\s*)[^\s]+")
_MYSQL = re.compile(r"(\bmysql\w{0,10}\s[^\n]{0,200}?-p)(?![\s-])(?!ort\b)[^\s]+")
_SAID = re.compile(
    r"(\b(?:password|passphrase|passwd|api key|token|secret) (?:is|was|set to) [\"']?)([^\s\"',;]{6,})", re.IGNORECASE
)
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
_NEAR = 2  # words after a name in which a key is hidden
_BLANK = "\x00"  # within a word, in a text of several
_BEFORE_KEYS = frozenset({"login", "wandb", "comet", "neptune"})
_SCHEME = re.compile(r"(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey)\s+", re.IGNORECASE)
_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})


def redact_text(text: str) -> str:
    """A line, a message or several lines without the secrets that they hold, each of which becomes ***."""
    shaped = any(map(text.__contains__, _HINTS))
    if not shaped and _HINT.search(text) is None:
        return text
    text = _PRIVATE_KEY.sub(rf"\1{MARK}\2", text)
    text = _URL_USER.sub(rf"\1{MARK}@", text)
    text = _WEBHOOK.sub(rf"\1{MARK}", text)
    text = _SHAPES.sub(MARK, text) if shaped else text
    text = _WANDB.sub(rf"\1{MARK}", text)
    text = _USER_OPTION.sub(_user, text)
    text = _SSHPASS.sub(rf"\1{MARK}", text)
    text = _MYSQL.sub(rf"\1{MARK}", text)
    text = _SAID.sub(lambda found: found[1] + MARK if _is_mixed(found[2]) else found[0], text)
    text = _assigned(text)
    return _BARE_SCHEME.sub(lambda found: f"{found[1]} {MARK}" if is_drawn(found[2]) else found[0], text)


def redact_words(words: Sequence[str]) -> list[str]:
    """The words of a command: also a value that is a word of its own after its option, or close after such a name."""
    redacted: list[str] = []
    before, near = Secrecy.NEVER, 0
    for word in words:
        near -= 1
        if not word.startswith("-") and (before.hides(word) or (near >= 0 and is_key_like(word))):
            redacted.append(MARK)
        elif (option := _OPTION.fullmatch(word)) and secrecy_of(option["name"]).hides(option["value"]):
            redacted.append(option["start"] + MARK)
        else:
            redacted.append(redact_text(word))
        if secrecy_of(word) is not Secrecy.NEVER or word.lower() in _BEFORE_KEYS:
            near = _NEAR
        is_option = word.startswith("-") and "=" not in word and not any(map(str.isspace, word))
        before = secrecy_of(word) if is_option else Secrecy.NEVER
    together = redact_text(" ".join(word.replace(" ", _BLANK) for word in redacted)).split(" ")
    return [word.replace(_BLANK, " ") for word in together] if len(together) == len(redacted) else redacted


def _is_mixed(value: str) -> bool:
    return any(map(str.isdigit, value)) and any(map(str.isalpha, value))


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
    secrecy = secrecy_of(found["dashes"] + name) if len(name) <= _JUDGED else Secrecy.NEVER
    if secrecy is Secrecy.NEVER:
        return nothing
    apart = not found["sign"].strip()  # by a blank alone
    if apart and not found["dashes"] and not (secrecy is Secrecy.ALWAYS and "_" in name):  # most such words are prose
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
