"""The errors that forewarn raises: each says whose fault it is and has a stable code and an HTTP status.

ForewarnError
├── RequestError                 the caller can fix it
│   ├── Invalid                  400  the request itself is wrong
│   │   ├── InvalidFleet         400  a fleet file; the message says where
│   │   └── InvalidSettings      400  a flag, an environment variable or a configuration file
│   ├── Unauthorized             401  no token, or an unknown one
│   ├── Forbidden                403  the token's role does not allow it
│   ├── NotFound                 404  no such scope, machine, maintenance, event or order
│   ├── MethodNotAllowed         405  the path does not take this method
│   ├── TooSlow                  408  the request did not arrive in time
│   ├── Refused                  409  a valid request that the current state forbids
│   │   ├── IllegalTransition    409  the event's or order's status forbids the verb
│   │   ├── MachineBusy          409  a machine is in an open or started event
│   │   ├── LargeRemoval         409  a fleet file would remove much of the fleet, and no person can confirm it
│   │   ├── KeyReused            409  an idempotency key came with another request
│   │   ├── StoreHeld            409  the store is held; an operator must resume it first
│   │   ├── StoreInUse           409  another process serves this database
│   │   └── TooManyUserOperations 409 the scope's limit of open user operations is reached
│   ├── TooManyAttempts          429  too many log-ins failed
│   ├── Unprocessable            422  a field is missing, unknown or of the wrong type
│   └── TooLarge                 413  the body is larger than the limit
└── ServiceError                 a fault of forewarn or of its surroundings
    ├── Conflict                 503  another writer changed the scope first; decide again
    ├── StoreUnavailable         503  the store cannot be read or written now
    ├── TooManyRequests          503  the limit of requests under way is reached
    ├── TooManyStreams           503  the limit of open streams is reached
    └── InvariantBroken          500  an invariant would be broken; nothing was saved

A message says what is wrong, where, and what to do.
"""

from typing import ClassVar

MAX_PROBLEMS_SHOWN = 100


class ForewarnError(Exception):
    """The base of all errors. Programs read `code`, which is stable; people read the message."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500


class RequestError(ForewarnError):
    code = "bad_request"
    status = 400


class Invalid(RequestError):
    code = "invalid"


class InvalidFleet(Invalid):
    """`problems` has a sentence for each thing that is wrong; the message is the first ones, a line each."""

    code = "invalid_fleet"

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        more = len(problems) - MAX_PROBLEMS_SHOWN
        super().__init__(
            "\n".join((*problems[:MAX_PROBLEMS_SHOWN], *([f"and {more} more errors"] if more > 0 else ())))
        )


class InvalidSettings(Invalid):
    """`problems` has a sentence for each setting that is wrong; the message has a line for each."""

    code = "invalid_settings"

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class Unauthorized(RequestError):
    code = "unauthorized"
    status = 401


class Forbidden(RequestError):
    code = "forbidden"
    status = 403


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"
    status = 405

    def __init__(self, message: str, *, allow: str = "") -> None:
        super().__init__(message)
        self.allow = allow


class TooSlow(RequestError):
    code = "request_timeout"
    status = 408


class TooManyAttempts(RequestError):
    code = "too_many_attempts"
    status = 429


class Unprocessable(RequestError):
    code = "unprocessable"
    status = 422


class TooLarge(RequestError):
    code = "too_large"
    status = 413


class NotFound(RequestError):
    """`scope` is the name of a scope that does not exist, if that is what was not found."""

    code = "not_found"
    status = 404

    def __init__(self, message: str, *, scope: str = "") -> None:
        super().__init__(message)
        self.scope = scope


class Refused(RequestError):
    code = "refused"
    status = 409


class IllegalTransition(Refused):
    code = "illegal_transition"


class MachineBusy(Refused):
    code = "machine_busy"


class LargeRemoval(Refused):
    code = "large_removal"


class KeyReused(Refused):
    code = "idempotency_key_reused"


class StoreHeld(Refused):
    code = "store_held"


class StoreInUse(Refused):
    code = "store_in_use"


class TooManyUserOperations(Refused):
    code = "too_many_user_operations"


class ServiceError(ForewarnError):
    code = "service_error"


class Conflict(ServiceError):
    code = "conflict"
    status = 503


class StoreUnavailable(ServiceError):
    code = "store_unavailable"
    status = 503


class TooManyRequests(ServiceError):
    code = "overloaded"
    status = 503


class TooManyStreams(ServiceError):
    code = "too_many_streams"
    status = 503


class InvariantBroken(ServiceError):
    code = "invariant_broken"
