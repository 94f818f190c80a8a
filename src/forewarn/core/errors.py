"""Every error forewarn raises on purpose: whose fault it is, a stable code, an HTTP status.

ForewarnError
├── RequestError                 the caller can mend it
│   ├── Invalid                  400  the request itself is wrong
│   │   ├── InvalidFleet         400  a fleet file, with the place
│   │   └── InvalidSettings      400  a flag, an environment variable or a configuration file
│   ├── NotFound                 404  no such scope, machine, maintenance, event or order
│   └── Refused                  409  a fair request that the present state forbids
│       ├── IllegalTransition    409  the event's or order's status forbids the verb
│       ├── MachineBusy          409  a machine is in an open or started event
│       ├── StoreInUse           409  another process serves this database
│       └── TooManyUserOperations 409 the scope's limit of open user operations is reached
└── ServiceError                 ours, or our surroundings'
    ├── Conflict                 503  somebody else changed the scope first; decide again
    ├── StoreUnavailable         503  the store cannot be read or written now
    └── InvariantBroken          500  a rule of ours would be broken; nothing was saved

A message says what was wrong, where, and what to do. This file knows nothing but itself.
"""

from typing import ClassVar


class ForewarnError(Exception):
    """The root: `code` is stable and for programs, the message is for people."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500


class RequestError(ForewarnError):
    code = "bad_request"
    status = 400


class Invalid(RequestError):
    code = "invalid"


class InvalidFleet(Invalid):
    code = "invalid_fleet"


class InvalidSettings(Invalid):
    code = "invalid_settings"


class NotFound(RequestError):
    code = "not_found"
    status = 404


class Refused(RequestError):
    code = "refused"
    status = 409


class IllegalTransition(Refused):
    code = "illegal_transition"


class MachineBusy(Refused):
    code = "machine_busy"


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


class InvariantBroken(ServiceError):
    code = "invariant_broken"
