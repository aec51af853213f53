"""Which names stand before secrets, and which values look like one."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ALWAYS_IN = (
    "secret", "passw", "passphrase", "credential", "apikey", "accesskey", "privatekey", "authkey", "authtoken",
    "accesstoken", "sessiontoken", "refreshtoken", "bearertoken",
)  # fmt: skip
_ALWAYS_LAST = frozenset({"auth", "authorization", "cookie"})
_OFTEN = frozenset({"key", "token", "pwd", "jwt", "sig", "signature", "bearer", "auth", "pass"})
_SOMETIMES = frozenset({*_OFTEN, "keys", "tokens", "authentication"})
# The last word of a name that says where a secret is, or of which kind, and not what it is.
_ABOUT = frozenset(
    {"file", "path", "dir", "folder", "name", "type", "kind", "method", "mode", "url", "uri", "host", "id", "ids",
     "size", "count", "length", "len", "dim", "ttl", "age", "policy", "provider", "scheme", "format", "prefix"}
)  # fmt: skip
# A password by these last words only as an option, in a variable, or behind what has passwords: a pass is much else.
_PASSWORDS = frozenset({"pass", "pw", "pwd"})
_HAVE_PASSWORDS = frozenset(
    {"db", "smtp", "imap", "mail", "email", "user", "login", "root", "admin", "mysql", "postgres", "pg", "redis",
     "mongo", "ftp", "sftp", "ssh", "http", "proxy", "ldap", "vpn", "wifi", "amqp", "rabbitmq", "registry", "svn"}
)  # fmt: skip
_PASSES = frozenset(
    {"train", "eval", "test", "val", "validation", "forward", "backward", "first", "second", "last", "one", "two",
     "both", "all", "single", "multi", "fwd", "bwd", "warmup"}
)  # fmt: skip
_SWITCH = frozenset(
    {"use", "no", "skip", "disable", "enable", "has", "is", "require", "requires", "with", "without", "allow"}
)
_NOTHING_SAID = frozenset({"value", "string", "str", "v", "env"})

_NOTHING = frozenset({"", "***", "true", "false", "yes", "no", "on", "off", "none", "null", "undefined"})
_NUMBER = re.compile(r"[+-]?[\d.,_]+(?:e[+-]?\d+)?[a-z%/]{0,3}", re.IGNORECASE)
_PATH = re.compile(r"(?:~|\.{0,2}/)[\w./~-]*|[\w.-]+\.(?:json|ya?ml|txt|pem|py|pt|bin|model)")
_MARKED = re.compile(r"[<\[({|].*[>\])}|]")  # <pad>, [MASK], and what is no text
_BETWEEN = re.compile(r"[-_.:/,\s()%$]+")
_PLAIN_PIECE = re.compile(r"(?:[A-Z]{0,8}|[A-Z]?[a-z]{0,14}|(?:[A-Z][a-z]{1,14}){1,4})\d{0,3}[a-zA-Z]?")
_PLAIN_LETTERS = 48
_DRAWN = re.compile(r"[A-Za-z0-9+/_=-]{16,}")
_DRAWN_DIGITS = 3
_KEY_LIKE = re.compile(r"[A-Za-z0-9+_-]+={0,2}")


class Secrecy(Enum):
    """When the value after a name is a secret: whatever it is, unless it is an ordinary word, if it looks drawn."""

    ALWAYS = auto()
    UNLESS_PLAIN = auto()  # a number, a path, or which pass
    UNLESS_ORDINARY = auto()
    IF_DRAWN = auto()
    NEVER = auto()

    def hides(self, value: str) -> bool:
        """Whether the value is one that nobody should read."""
        if self is Secrecy.NEVER or value.lower() in _NOTHING:
            return False
        if self is Secrecy.ALWAYS:
            return True
        if self is Secrecy.UNLESS_PLAIN:
            return not (value.lower() in _PASSES or _NUMBER.fullmatch(value) or _PATH.fullmatch(value))
        if is_ordinary(value):
            return False
        return self is Secrecy.UNLESS_ORDINARY or is_drawn(value)


@lru_cache(4096)
def secrecy_of(name: str) -> Secrecy:
    """What a name of an option, variable, key or header says of the value after it.

    Names are taken apart at signs and capitals: a tokenizer is no token, and an author no auth.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    while words and (words[-1] in _NOTHING_SAID or words[-1].isdigit()) and len(words) > 1:
        words.pop()
    if not words:
        return Secrecy.NEVER
    last, joined = words[-1], "".join(words)
    if any(part in joined for part in _ALWAYS_IN) or last in _ALWAYS_LAST:
        if last in _ABOUT:
            return Secrecy.IF_DRAWN
        return Secrecy.UNLESS_ORDINARY if words[0] in _SWITCH else Secrecy.ALWAYS
    if last in _PASSWORDS:
        variable = name.isupper() and len(words) > 1  # DB_PASS
        option = name.startswith("-") and len(words) < 3
        if last == "pw" or option or variable or not _HAVE_PASSWORDS.isdisjoint(words):
            return Secrecy.UNLESS_PLAIN
    if "webhook" in words and last in ("webhook", "hook", "url", "uri"):
        return Secrecy.ALWAYS
    if last in _OFTEN and last != "pass":
        return Secrecy.UNLESS_ORDINARY
    return Secrecy.NEVER if _SOMETIMES.isdisjoint(words) else Secrecy.IF_DRAWN


def is_ordinary(value: str) -> bool:
    """Whether it is a number, a path, a mark such as <pad>, or short words as in a dictionary or a model's name."""
    if value.lower() in _NOTHING or _NUMBER.fullmatch(value) or _PATH.fullmatch(value) or _MARKED.fullmatch(value):
        return True
    pieces = _BETWEEN.split(value)
    return len(value) <= _PLAIN_LETTERS and all(map(_PLAIN_PIECE.fullmatch, pieces))


def is_key_like(value: str) -> bool:
    """Whether a whole word looks like a key: long, drawn and in one piece."""
    return len(value) >= 20 and _KEY_LIKE.fullmatch(value) is not None and is_drawn(value)


def is_drawn(value: str) -> bool:
    """Whether it looks drawn at random: long, of letters and several digits without a break."""
    return any(
        sum(map(str.isdigit, found)) >= _DRAWN_DIGITS and any(map(str.isalpha, found))
        for found in _DRAWN.findall(value)
    )
