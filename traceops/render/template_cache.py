"""Compiled templates, kept in the user's cache folder: compiling them takes longer than filling them."""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
from pathlib import Path

from jinja2.bccache import Bucket, BytecodeCache, bc_magic

from traceops.core.cache_folder import cache_folder
from traceops.core.whole_file import write_whole

_DIGEST_BYTES = hashlib.sha256().digest_size


class TemplateCache(BytecodeCache):
    """A file a template in the folder `templates` of the cache, replaced when it is out of date.

    Any number of processes may share the folder; where it cannot be used, templates are compiled every time.
    """

    def load_bytecode(self, bucket: Bucket) -> None:
        file = _file(bucket)
        try:
            stored = b"" if file is None else file.read_bytes()
        except OSError:
            return
        code = stored[_DIGEST_BYTES:]
        if stored[:_DIGEST_BYTES] == _digest(bucket, code):
            bucket.code = marshal.loads(code)

    def dump_bytecode(self, bucket: Bucket) -> None:
        file = _file(bucket)
        if file is None:
            return
        code = marshal.dumps(bucket.code)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, _digest(bucket, code) + code)
        except OSError:  # it is compiled again next time
            return


def _file(bucket: Bucket) -> Path | None:
    folder = cache_folder("templates")
    return None if folder is None else folder / bucket.key


def _digest(bucket: Bucket, code: bytes) -> bytes:
    """Of the code and all that it was made from: source, settings, Jinja and Python."""
    made = bucket.environment
    settings = (bucket.checksum, made.autoescape, made.trim_blocks, made.lstrip_blocks)
    return hashlib.sha256(importlib.util.MAGIC_NUMBER + bc_magic + repr(settings).encode() + code).digest()
