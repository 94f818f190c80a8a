"""Every error of the guest side, one tree; the class says whose fault it is and whether asking again may help.

GuestError
  EndpointError            the endpoint; asking again may help
    Unreachable            no connection: three in a row, and the endpoint is looked for anew
    NoAnswer               connected, but no answer within its time-out
    CutShort               the answer broke off, or is no HTTP
    NotReady               404, 410, 429 or 5xx: it is there and cannot serve us yet
    BadDocument            200, but what came is no document
  Refused                  400, 405, …: what we sent is wrong; asking again does not help
  ConfigError              the configuration file: exit code 2
  JournalInUse             another agent has the journal
  StepFailed               a step's own failure, with a reason fit for the journal
    Unanswered             whoever it asked does not answer: it may yet
    OutOfTime              it did not end within its share of the budget

JournalError               the journal cannot be written: the agent ends, exit code 1
"""

from __future__ import annotations


class GuestError(Exception):
    """The root of the tree."""


class EndpointError(GuestError):
    """The endpoint did not give what was asked for; asking again may help."""

    # Two failures with the same `kind` are the same failure: it is logged once.
    @property
    def kind(self) -> str:
        return type(self).__name__


class Unreachable(EndpointError):
    """No connection."""


class NoAnswer(EndpointError):
    """No answer in time."""


class CutShort(EndpointError):
    """The answer broke off."""


class NotReady(EndpointError):
    """A status that may pass: 404, 410, 429, 5xx."""

    def __init__(self, status: int, text: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def kind(self) -> str:
        return str(self.status)


class BadDocument(EndpointError):
    """The body is no document of this protocol."""


class Refused(GuestError):
    """The endpoint will not have this request, however often it is sent."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class ConfigError(GuestError):
    """The configuration file says something it may not."""


class JournalInUse(GuestError):
    """Two agents with one journal would act twice."""


class StepFailed(GuestError):
    """A step did not do what it should; the text goes into journal and status and must hold no secret."""


class Unanswered(StepFailed):
    """Whoever a step asked did not answer, or not sensibly: it may yet."""


class OutOfTime(StepFailed):
    """A step was stopped at the end of its share of the budget."""


class JournalError(SystemExit):
    """What cannot be remembered must not be done. No `except Exception` around a step may take it for the step's failure."""
