"""Parses the text of a story: its steps with their lines, and the fleet and settings in them.

This module knows no service. It raises Invalid with the line of an error, or ValueError where the caller knows the line.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forewarn.core.durations import parse_duration
from forewarn.core.errors import Invalid
from forewarn.core.fleet import Fleet
from forewarn.core.model import ApprovalMode, EventType, Host, Machine, Scope, ScopeKind
from forewarn.service.settings import declared, names

MAX_BYTES = 1024 * 1024
MAX_STEPS = 1_000
SCOPE_OPTIONS = (
    "approval", "approve_user_events", "max_user_operations", "terminate_notice", "minimum_notice",
    "windows", "approval_opens_window",
    "max_unavailable",
)  # fmt: skip
MACHINE_OPTIONS = ("ud", "fd", "host", "labels")
HOST_OPTIONS = ("labels",)


@dataclass(frozen=True, slots=True)
class Step:
    """A step. `lead` is the text before the command: comments and empty lines. `line` is the line of the command."""

    lead: str
    command: str
    body: tuple[str, ...]
    expected: str
    line: int


def parse_story(text: str, source: str = "story") -> tuple[list[Step], str]:
    """Return the steps and the text after the last one; raise Invalid with the line of an error."""
    if len(text) > MAX_BYTES:
        raise Invalid(f"{source}: longer than {MAX_BYTES} characters, the limit for stories")
    steps: list[Step] = []
    lead: list[str] = []
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if line and (block or not line.startswith("#")):
            block.append(line)
        elif block:
            steps.append(_step("".join(lead), block, source, number - len(block)))
            lead, block = [], []
        else:
            lead.append(f"{line}\n")
    if len(steps) > MAX_STEPS:
        raise Invalid(f"{source}: line {steps[MAX_STEPS].line}: more than {MAX_STEPS} steps: split the story")
    # The last line is not part of the text; the loop adds it so that the last block ends.
    return steps, "".join(lead[:-1])


def _step(lead: str, block: list[str], source: str, line: int) -> Step:
    """Parse a command, its input, `----` and its result; the `----` may be missing if no result is expected."""
    command, *rest = block
    if command == "----":
        raise Invalid(f"{source}: line {line}: there is no command above the `----`")
    end = rest.index("----") if "----" in rest else len(rest)
    body, expected = rest[:end], rest[end + 1 :]
    if "----" in expected:
        second = line + 2 + end + expected.index("----")
        raise Invalid(f"{source}: line {second}: a second `----` in one step: put an empty line between steps")
    return Step(lead, command, tuple(body), "".join(f"{each}\n" for each in expected), line)


def setting(key: str, value: str) -> tuple[str, object]:
    """Return the name of the setting's field and its parsed value. The key may be that name or the one in a settings file."""
    parsers = {flat: each.field.metadata["read"] for flat, each in declared().items()}
    name = names().get(key, key)
    if name not in parsers:
        raise ValueError(f"{key!r} is not a setting")
    return name, int(value) if key.endswith("_s") and value.isdecimal() else parsers[name](value)


def parse_fleet_lines(lines: Iterable[str]) -> Fleet:
    """Parse lines `scope NAME KIND [setting=value …]` and `machine SCOPE/NAME [ud=N] [fd=N] [host=H] [labels=rack:r1,…]`.

    A line `host NAME [labels=rack:r1,…]` lists a host.
    """
    scopes, machines, hosts = {}, {}, {}
    for line in lines:
        match line.split():
            case ["scope", name, kind, *rest]:
                scopes[name] = scope_of(name, kind, _options(rest, SCOPE_OPTIONS))
            case ["machine", key, *rest] if key.count("/") == 1:
                options = _options(rest, MACHINE_OPTIONS)
                scope, _, short = key.partition("/")
                machines[scope, short] = Machine(
                    scope=scope,
                    name=short,
                    update_domain=int(options.get("ud", "0")),
                    fault_domain=int(options.get("fd", "0")),
                    host=options.get("host", ""),
                    labels=_labels(options),
                )
            case ["host", name, *rest]:
                hosts[name] = Host(name=name, labels=_labels(_options(rest, HOST_OPTIONS)), listed=True)
            case _:
                raise ValueError(f"{line!r} is neither `scope NAME KIND …` nor `machine SCOPE/NAME …`")
    return Fleet(scopes, machines, hosts)


def _labels(options: Mapping[str, str]) -> dict[str, str]:
    return dict(pair.split(":") for pair in options.get("labels", "").split(",") if pair)


def _options(pairs: Iterable[str], known: tuple[str, ...]) -> dict[str, str]:
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in known:
            raise ValueError(f"{pair!r} is not one of {', '.join(f'{each}=…' for each in known)}")
        options[key] = value
    return options


def scope_of(name: str, kind: str, options: dict[str, str]) -> Scope:
    notices = dict(pair.split(":") for pair in options.get("minimum_notice", "").split(",") if pair)
    return Scope(
        name=name,
        kind=ScopeKind(kind),
        approval=ApprovalMode(options.get("approval", "any")),
        approve_user_events=options.get("approve_user_events") == "true",
        max_user_operations=int(options.get("max_user_operations", "0")),
        terminate_notice_s=parse_duration(options.get("terminate_notice", "5m")),
        minimum_notice_s={EventType(key): parse_duration(value) for key, value in notices.items()},
        windows=tuple(filter(None, options.get("windows", "").split(","))),
        approval_opens_window=options.get("approval_opens_window") == "true",
        max_unavailable=options.get("max_unavailable", ""),
    )
