"""Log lines: text on a terminal, JSON elsewhere; one line per action, no secrets.

A record with `fields`, a mapping, has these as further keys of its JSON line.
"""

import json
import logging
import sys
from datetime import UTC, datetime

from forewarn.core.errors import ForewarnError


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up(level: str) -> None:
    """Send all log lines of this level and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%H:%M:%S")
    handler.setFormatter(text if sys.stderr.isatty() else JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class TroubleLog:
    """Log the first failure of a loop, and each failure that differs from the last. `last` is its text; "" while all is well."""

    def __init__(self, log: logging.Logger, problem: str) -> None:
        self._log, self._problem, self.last = log, problem, ""

    def note(self, error: Exception) -> None:
        """Called while the error is handled: an error that is not one of ours is logged with its traceback."""
        text = str(error) or repr(error)
        if text == self.last:
            return
        self.last = text
        if isinstance(error, ForewarnError):
            self._log.error("%s: %s", self._problem, error)
        else:
            self._log.exception(self._problem)

    def clear(self, message: str) -> None:
        """Log the message if there was trouble."""
        if self.last:
            self._log.info(message)
        self.last = ""
