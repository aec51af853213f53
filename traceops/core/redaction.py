"""Takes secrets out of what is recorded: commands, variables, messages, quoted lines.

What is launched keeps its values; this is for what is written down and shown. Redacting twice changes nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache
from typing import Any

from traceops.core.text import pattern

# The service; texts of which each of its keys has one, for a quick look; a pattern of the whole key.
SHAPES: tuple[tuple[str, str, str], ...] = (
    ("Hugging Face", "hf_", r"hf_[A-Za-z0-9]{20,}"),
    ("OpenAI, Anthropic, DeepSeek", "sk-", r"(?<!-)sk-(?=[\w-]{0,60}\d)[\w-]{16,}"),
    ("Stripe", "k_live_", r"[srp]k_live_[A-Za-z0-9]{10,}"),
    ("Stripe, tests", "k_test_", r"[srp]k_test_[A-Za-z0-9]{10,}"),
    ("Stripe webhooks", "whsec_", r"whsec_[A-Za-z0-9+/]{24,}"),
    ("GitHub", "ghp_ gho_ ghu_ ghs_ ghr_", r"gh[pousr]_[A-Za-z0-9]{20,}"),
    ("GitHub, fine-grained", "github_pat_", r"github_pat_[A-Za-z0-9_]{20,}"),
    ("GitLab", "glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glagent- glimt- gloas-",
     r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt|oas)-[\w-]{16,}"),
    ("AWS", "AKIA", r"AKIA[A-Z0-9]{16}"),
    ("AWS, temporary", "ASIA", r"ASIA[A-Z0-9]{16}"),
    ("JSON web token", "eyJ", r"eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"),
    ("Neptune, Grafana: packed JSON", "eyJ", r"eyJ[\w+/-]{40,}={0,2}"),
    ("Slack", "xox", r"xox[abeoprs]-[\w-]{10,}"),
    ("Slack apps", "xapp-", r"xapp-[\w-]{10,}"),
    ("Google", "AIza", r"AIza[\w-]{30,}"),
    ("Google OAuth", "ya29.", r"ya29\.[\w-]{20,}"),
    ("npm", "npm_", r"npm_[A-Za-z0-9]{30,}"),
    ("PyPI", "pypi-", r"pypi-[\w-]{30,}"),
    ("RubyGems", "rubygems_", r"rubygems_[a-f0-9]{48}"),
    ("NVIDIA NGC", "nvapi-", r"nvapi-[\w-]{20,}"),
    ("Docker Hub", "dckr_", r"dckr_[op]at_[\w-]{20,}"),
    ("HashiCorp Vault", "hvs. hvb. hvr.", r"hv[sbr]\.[\w-]{20,}"),
    ("HashiCorp Terraform", "atlasv1.", r"(?:[\w-]{14}\.)?atlasv1\.[\w-]{30,}"),
    ("SendGrid", "SG.", r"SG\.[\w-]{16,32}\.[\w-]{16,64}"),
    ("Mailgun", "key-", r"key-[a-f0-9]{32}"),
    ("Mailchimp", "-us", r"[a-f0-9]{32}-us\d{1,2}"),
    ("Twilio", "AC", r"AC[a-f0-9]{32}"),
    ("Twilio keys", "SK", r"SK[a-f0-9]{32}"),
    ("Square", "sq0", r"sq0[a-z]{3}-[\w-]{22,}"),
    ("Square access", "EAAA", r"EAAA[\w-]{56,}"),
    ("DigitalOcean", "dop_v1_ doo_v1_ dor_v1_", r"do[opr]_v1_[a-f0-9]{64}"),
    ("Shopify", "shpat_ shpss_ shpca_ shppa_", r"shp(?:at|ss|ca|pa)_[a-fA-F0-9]{32}"),
    ("Linear", "lin_api_", r"lin_api_[A-Za-z0-9]{40}"),
    ("Notion", "ntn_", r"ntn_[A-Za-z0-9]{40,}"),
    ("Postman", "PMAK-", r"PMAK-[a-f0-9]{24}-[a-f0-9]{34}"),
    ("New Relic", "NRAK-", r"NRAK-[A-Z0-9]{27}"),
    ("Grafana", "glsa_", r"glsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}"),
    ("Grafana Cloud", "glc_", r"glc_[A-Za-z0-9+/]{32,}={0,2}"),
    ("Sentry", "sntr", r"sntr(?:ys|yu)_[\w+/=-]{40,}"),
    ("Databricks", "dapi", r"dapi[a-f0-9]{32}(?:-\d)?"),
    ("Replicate", "r8_", r"r8_[A-Za-z0-9]{36,}"),
    ("Groq", "gsk_", r"gsk_[A-Za-z0-9]{40,}"),
    ("Perplexity", "pplx-", r"pplx-[A-Za-z0-9]{40,}"),
    ("xAI", "xai-", r"xai-[A-Za-z0-9]{60,}"),
    ("Together", "tgp_v1_", r"tgp_v1_[\w-]{40,}"),
    ("Fireworks", "fw_", r"fw_(?=[A-Za-z]*\d)[A-Za-z0-9]{22,}"),
    ("Cerebras", "csk-", r"csk-[a-z0-9]{40,}"),
    ("LangSmith", "lsv2_", r"lsv2_(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}"),
    ("Pinecone", "pcsk_", r"pcsk_[\w]{40,}"),
    ("Anyscale", "esecret_", r"esecret_[a-z0-9]{24,}"),
    ("Modal", "ak- as-", r"a[ks]-(?=[A-Za-z]*\d)[A-Za-z0-9]{22}(?![\w-])"),
    ("Weights & Biases, own server", "local-", r"local-[a-f0-9]{40}"),
    ("Telegram bots", ":AA", r"\d{8,10}:AA[\w-]{32,}"),
    ("Figma", "figd_", r"figd_[\w-]{38,}"),
    ("Atlassian", "ATATT3 ATCTT3", r"AT(?:ATT|CTT)3xFf[\w=-]{20,}"),
    ("Contentful", "CFPAT-", r"CFPAT-[\w-]{40,}"),
    ("Supabase", "sbp_", r"sbp_[a-f0-9]{40}"),
    ("PlanetScale", "pscale_", r"pscale_(?:pw|tkn|oauth)_[\w.-]{30,}"),
    ("1Password", "ops_eyJ", r"ops_eyJ[\w+/-]{60,}={0,3}"),
    ("Duffel", "duffel_", r"duffel_(?:live|test)_[\w-]{40,}"),
    ("Fly.io", "fm2_", r"(?:[Ff]ly[Vv]1 )?fm2_[\w+/=,-]{20,}"),
    ("Tailscale", "tskey-", r"tskey-[a-z]+-[\w-]{20,}"),
    ("PostHog", "phc_ phx_", r"ph[cx]_[A-Za-z0-9]{30,}"),
    ("Doppler", "dp.", r"dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.-]{40,}"),
    ("Cloudflare origin", "v1.0-", r"v1\.0-[a-f0-9]{24}-[a-f0-9]{60,}"),
    ("age", "AGE-SECRET-KEY-", r"AGE-SECRET-KEY-1[A-Z0-9]{50,}"),
    ("Artifactory", "AKCp", r"AKCp[A-Za-z0-9]{60,}"),
)  # fmt: skip

# Addresses whoever knows which may post to: what comes behind is the secret.
WEBHOOKS = (
    r"hooks\.slack\.com/(?:services|workflows|triggers)/",
    r"discord(?:app)?\.com/api/webhooks/\d+/",
    r"outlook\.office(?:365)?\.com/webhook/",
    r"\.webhook\.office\.com/webhookb2/",
    r"\.logic\.azure\.com(?::\d+)?/workflows/",
    r"hooks\.zapier\.com/hooks/catch/",
    r"hook\.(?:\w+\.)?make\.com/",
    r"maker\.ifttt\.com/trigger/\w{1,60}/(?:json/)?with/key/",
    r"api\.telegram\.org/bot",
    r"chat\.googleapis\.com/v1/spaces/[\w-]{1,60}/messages\?key=",
    r"open\.(?:feishu|larksuite)\.c(?:n|om)/open-apis/bot/v2/hook/",
    r"oapi\.dingtalk\.com/robot/send\?access_token=",
    r"qyapi\.weixin\.qq\.com/cgi-bin/webhook/send\?key=",
    r"ntfy\.sh/",
    r"events\.pagerduty\.com/(?:integration|generic)/",
)

_WORD = pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
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

_NOTHING = frozenset({"", "-", "***", "true", "false", "yes", "no", "on", "off", "none", "null", "undefined"})
_NUMBER = pattern(r"[+-]?[\d.,_]+(?:e[+-]?\d+)?[a-z%/]{0,3}", re.IGNORECASE)
_PATH = pattern(r"(?:~|\.{0,2}/)[\w./~-]*|[\w.-]+\.(?:json|ya?ml|txt|pem|py|pt|bin|model)")
_MARKED = pattern(r"[<\[({|].*[>\])}|]")  # <pad>, [MASK], and what is no text
# A variable, the output of a command, what a manual leaves open (<your token>), and where Docker takes a secret from.
_REFERENCE = pattern(
    r"[\"']?(?:\$[A-Z_][A-Z0-9_]*|\$\{\w+(?::-)?\}?|\$\(.*|[a-z_-]{0,12}<[A-Za-z][A-Za-z _-]*>?|\{[A-Za-z_ ]+\}?"
    r"|id=\w+(?:,(?:src|source|env|type)=[\w./-]+)*)[\"']?",
    re.DOTALL,
)
_BETWEEN = pattern(r"[-_.:/,\s()%$]+")
_PLAIN_PIECE = pattern(r"(?:[A-Z]{0,8}|[A-Z]?[a-z]{0,14}|(?:[A-Z][a-z]{1,14}){1,4})\d{0,3}[a-zA-Z]?")
_PLAIN_LETTERS = 48
_DRAWN = pattern(r"[A-Za-z0-9+/_=-]{16,}")
_DRAWN_DIGITS = 3
_KEY_LIKE = pattern(r"[A-Za-z0-9+_-]+={0,2}")


class Secrecy(Enum):
    """When the value after a name is a secret: whatever it is, unless it is an ordinary word, if it looks drawn."""

    ALWAYS = auto()
    UNLESS_PLAIN = auto()  # a number, a path, or which pass
    UNLESS_ORDINARY = auto()
    IF_DRAWN = auto()
    NEVER = auto()

    def hides(self, value: str) -> bool:
        """Whether the value is one that nobody should read."""
        if self is Secrecy.NEVER or value.lower() in _NOTHING or _REFERENCE.fullmatch(value):
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
    """What a name of an option, variable, key or header says of the value after it. Names are taken apart at signs and
    capitals: a tokenizer is no token, and an author no auth."""
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


MARK = "***"

# Text without any of these is left as it is, at the speed of one search.
_HINT = pattern(
    r"key|token|secret|pass|pwd?\b|_pw|credential|auth|cookie|sig|jwt|bearer|basic|wandb|login|hook|mysql|:/|PRIVATE"
    r"|-u |--user",
    re.IGNORECASE,
)
_HINTS = tuple(dict.fromkeys(hint for _, hints, _ in SHAPES for hint in hints.split()))

# Values that say themselves what they are.
_SHAPES = pattern(rf"(?<![A-Za-z0-9])(?:{'|'.join(shape for _, _, shape in SHAPES)})")
_WEBHOOK = pattern(rf"({'|'.join(WEBHOOKS)})[^\s\"'<>]+")
_PRIVATE_KEY = pattern(
    r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----).*?(-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)", re.DOTALL
)
_WANDB = pattern(r"(wandb[^\n]{0,80}?(?<![0-9a-f]))[0-9a-f]{40}(?![0-9a-f])", re.IGNORECASE)
_URL_USER = pattern(r"([A-Za-z][A-Za-z0-9+.-]{1,30}:/{1,2})(?!git@)[^\s/@\"'<>]{1,2000}(?:@[^\s/@\"'<>]{1,2000})*@")
_BARE_SCHEME = pattern(r"\b(Bearer|Basic)\s+([\w.~+/-]{16,}=*)")
_SSHPASS = pattern(r"(\bsshpass\s+-p\s*)[^\s]+")
_MYSQL = pattern(r"(\bmysql\w{0,10}\s[^\n]{0,200}?-p)(?![\s-])(?!ort\b)[^\s]+")
_SAID = pattern(
    r"(\b(?:password|passphrase|passwd|api key|token|secret) (?:is|was|set to) [\"']?)([^\s\"',;]{6,})", re.IGNORECASE
)
_USER_OPTION = pattern(r"((?:^|\s)(?:-u|--user)[ =][\"']?)([^\s:\"']+:[^\s\"']+)")

# A name and the sign after it; it begins where no other does, so that long words cost no more than short ones.
_NAMED = pattern(
    r"""(?<![\w.-])(?P<dashes>-{0,2})(?P<name>[A-Za-z_][\w.-]*)
    (?P<sign>\\{0,8}["']?\]?\s{0,8}(?:=>|[:=])\s{0,8}|\s{1,8})(?P<open>\\{0,8}["'])?""",
    re.VERBOSE,
)
_QUOTED = pattern(r"(?:(?!\\{0,8}[\"'])[^\n])*")
_BARE = pattern(r"\[\w{1,30}\]|[^\s,;&\"'}\])<>]*")
_LEFT_OPEN = pattern(r"<[A-Za-z][A-Za-z _-]{0,40}>")  # glpat-<your token>
_TO_THE_END = pattern(r"[^\"'\n\r]*")
_JUDGED = 1000  # characters of a value: one that is longer is no word
_OPTION = pattern(r"(?P<start>-{0,2}(?P<name>[A-Za-z_+~][\w.+-]*)=)(?P<value>.*)", re.DOTALL)
_NEAR = 2  # words after a name in which a key is hidden
_BLANK = "\x00"  # within a word, in a text of several
_BEFORE_KEYS = frozenset({"login", "wandb", "comet", "neptune"})
_SCHEME = pattern(r"(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey)\s+", re.IGNORECASE)
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
    text = _SAID.sub(_if_mixed, text)
    text = _assigned(text)
    return _BARE_SCHEME.sub(lambda found: f"{found[1]} {MARK}" if is_drawn(found[2]) else found[0], text)


def redact_words(words: Sequence[str]) -> list[str]:
    """The words of a command: also a value that is a word of its own after its option, or close after such a name."""
    redacted: list[str] = []
    before, near = Secrecy.NEVER, 0
    for word in words:
        near -= 1
        if not word.startswith("-") and (before.hides(word.strip("\"'")) or (near >= 0 and is_key_like(word))):
            redacted.append(MARK)
        elif (option := _OPTION.fullmatch(word)) and secrecy_of(option["name"]).hides(option["value"].strip("\"'")):
            redacted.append(option["start"] + MARK)
        else:
            redacted.append(redact_text(word))
        if secrecy_of(word) is not Secrecy.NEVER or word.lower() in _BEFORE_KEYS:
            near = _NEAR
        is_option = word.startswith("-") and "=" not in word and not any(map(str.isspace, word))
        before = secrecy_of(word) if is_option else Secrecy.NEVER
    together = redact_text(" ".join(word.replace(" ", _BLANK) for word in redacted)).split(" ")
    return [word.replace(_BLANK, " ") for word in together] if len(together) == len(redacted) else redacted


def _if_mixed(found: re.Match[str]) -> str:
    mixed = any(map(str.isdigit, found[2])) and any(map(str.isalpha, found[2]))
    return found[1] + MARK if mixed else found[0]


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
    if value is _BARE and _LEFT_OPEN.match(text, judged.end()):
        return nothing
    whole = value.match(text, start)
    assert whole is not None
    return start, whole.end()
