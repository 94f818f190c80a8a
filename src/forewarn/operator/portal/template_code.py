"""Keeps the compiled templates of the portal in memory, so that the portals of one process compile each template once.

A process has many portals if it runs many emulators, one for each test. Only `portal/app.py` uses this: compiled code fits only
environments with the same options.
"""

from functools import cache
from types import CodeType

from jinja2.bccache import Bucket, BytecodeCache


class TemplateCode(BytecodeCache):
    """The compiled templates, by their names and the checksums of their sources."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        if bucket.code is not None:
            self._code[bucket.key, bucket.checksum] = bucket.code


@cache
def template_code() -> TemplateCode:
    """Return the compiled templates of this process."""
    return TemplateCode()
