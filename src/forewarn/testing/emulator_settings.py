"""What distinguishes an emulator from a service before it starts: its own settings, its clock and its ids."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID

from forewarn.app.operator_token import MIN_TOKEN_CHARS, environment_token
from forewarn.core.durations import duration_text
from forewarn.core.errors import Invalid, InvalidSettings
from forewarn.endpoint.protocol import ANY_HOST
from forewarn.operator.api.access import ENVIRONMENT_TOKEN
from forewarn.service.clock import Clock, ManualClock, clock_for
from forewarn.service.settings import Settings, load, on_loopback
from forewarn.service.settings import names as setting_names
from forewarn.testing.durations import seconds_of

START = datetime(2030, 1, 1, tzinfo=UTC)
# The emulator sets these itself.
OWN_SETTINGS = (
    "store",
    "state_dir",
    "fleet",
    "prune",
    "clock",
    "guest",
    "operator",
    "token_free",
    "every_caller",
)
# The arguments of an emulator that are no settings.
ARGUMENTS = ("machines", "fleet", "clock", "seed", "port", "guest", "operator", "faults", "replay", "enabled")
# On a moved clock a guest sees many changes within one second, so the rate limit is off unless a test sets it.
DEFAULTS = {"disable_after": "0", "rate_limit": "0", "executor": "simulated"}


def check_settings(settings: Collection[str], arguments: Iterable[str] = ARGUMENTS) -> None:
    """Raise InvalidSettings if a test sets what the emulator sets itself, or what is neither a setting nor an argument."""
    if own := sorted(set(settings) & set(OWN_SETTINGS)):
        raise InvalidSettings(f"{own[0]}: an emulator has its own: leave it out")
    known = [name for name in setting_names() if name not in OWN_SETTINGS]
    if unknown := sorted(set(settings) - set(known)):
        raise InvalidSettings(
            f"{unknown[0]}: an emulator has no such argument: use {', '.join(arguments)}, or one of the settings"
            f" {', '.join(known)}"
        )


def emulator_settings(
    settings: Mapping[str, object], *, guest: Sequence[str], operator: str, every_caller: str | None
) -> Settings:
    """Return the settings of the emulator's service. Environment variables are ignored: they are meant for a service."""
    flags = {
        **DEFAULTS,
        **{name: _flag(name, value) for name, value in settings.items()},
        "store": "memory:",
        "guest": list(guest),
        "allow_any_interface": True,
        "operator": operator,
        "behind_tls_proxy": True,  # `_with_access` replaces it
        "every_caller": every_caller,
    }
    return _with_access(load(flags, {}))


def _with_access(settings: Settings) -> Settings:
    """Require a token if operators connect off loopback, and accept every host name if guests do.

    Off loopback, such as in the network of a container, there is no TLS: the emulator controls no real machine.
    """
    token_free = on_loopback(settings.operator)
    if not token_free and not environment_token():
        raise InvalidSettings(
            f"operator: {settings.operator} is not on loopback, so other computers could control the emulator: set"
            f" {ENVIRONMENT_TOKEN} to a token of at least {MIN_TOKEN_CHARS} characters, and use it in every call"
        )
    guests_on_loopback = all(on_loopback(listener.partition("@")[0]) for listener in settings.guest)
    hosts = settings.allowed_hosts if guests_on_loopback else (ANY_HOST,)
    return replace(settings, behind_tls_proxy=False, token_free=token_free, allowed_hosts=hosts)


def emulator_clock(name: str, *, seeded: bool) -> Clock:
    """Return the clock of this name. With a seed a manual clock starts at START, otherwise now."""
    try:
        return ManualClock(START) if seeded and name == "manual" else clock_for(name)
    except Invalid as error:
        raise InvalidSettings(f"clock: {error}") from None


def seeded_ids(seed: int) -> Callable[[], str]:
    """Return a function that makes upper-case GUIDs, the same ones for the same seed."""
    generator = Random(seed)  # noqa: S311 - repeatable on purpose
    return lambda: str(UUID(int=generator.getrandbits(128), version=4)).upper()


def _flag(name: str, value: object) -> object:
    """Return the value as the command line has it, where a number and a duration are text."""
    is_duration = setting_names()[name].endswith("_s")
    if is_duration and isinstance(value, int | float | timedelta):
        try:
            return duration_text(int(seconds_of(value, name)))
        except Invalid as error:
            raise InvalidSettings(str(error)) from None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
