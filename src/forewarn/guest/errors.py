"""Every error of the guest side in one tree. The class says what failed and whether trying again may help.

GuestError
  EndpointError            the endpoint; trying again may help
    Unreachable            no connection; after three in a row the endpoint is discovered again
    NoAnswer               connected, but no response within the time-out
    CutShort               the response broke off, or is not HTTP
    NotReady               404, 410, 429 or 5xx: the endpoint cannot serve us yet
    BadDocument            200, but the body is not a document
    PollInterrupted        another thread of this program ended a long poll
  Refused                  400, 405, …: the request is wrong; trying again does not help
  ConfigError              the configuration file: exit code 2
  JournalInUse             another agent uses the journal
  StepFailed               a step failed; the text goes into journal and status
    Unanswered             a server that the step called does not answer; it may later
    OutOfTime              the step did not end within its share of the budget
  Interrupted              no event needs the step any more; no StepFailed, so that no handler takes it for a failure

JournalError               the journal cannot be written; the agent ends with exit code 1
"""

from __future__ import annotations


class GuestError(Exception):
    """The root of the tree."""


class EndpointError(GuestError):
    """The endpoint did not give what was requested; trying again may help."""

    # Two consecutive failures with the same `kind` are logged once.
    @property
    def kind(self) -> str:
        return type(self).__name__


class Unreachable(EndpointError):
    """No connection."""


class NoAnswer(EndpointError):
    """No answer in time."""


class CutShort(EndpointError):
    """The response broke off."""


class NotReady(EndpointError):
    """A status that may change: 404, 410, 429, 5xx."""

    def __init__(self, status: int, text: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def kind(self) -> str:
        return str(self.status)


class BadDocument(EndpointError):
    """The body is not a document of this protocol."""


class PollInterrupted(EndpointError):
    """Another thread of this program ended a long poll; the endpoint did nothing wrong."""


class Refused(GuestError):
    """The endpoint refuses this request and will refuse it again."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class ConfigError(GuestError):
    """The configuration file has a wrong value."""


class JournalInUse(GuestError):
    """Another agent uses the journal; two agents would do everything twice."""


class StepFailed(GuestError):
    """A step failed; the text goes into journal and status and must hold no secret."""


class Unanswered(StepFailed):
    """A server that the step called did not answer, or not sensibly; it may later."""


class NoAnswerInTime(Unanswered):
    """A server that the step called did not answer within the time that it was given."""


class OutOfTime(StepFailed):
    """A step was stopped at the end of its share of the budget."""


class Interrupted(GuestError):
    """No event needs the step any more, as after a cancel; what it began is undone."""


class JournalError(SystemExit):
    """The agent ends: it must not do what it cannot record. Not an Exception, so that no handler's `except` catches it."""
