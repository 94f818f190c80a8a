"""What a story says: the steps of its text, each with its line, and the fleet and settings it states.

Knows nothing of a service. What is wrong is told as Invalid with the line, or as ValueError where the caller knows it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from forewarn.core.durations import parse_duration
from forewarn.core.errors import Invalid
from forewarn.core.fleet import Fleet
from forewarn.core.model import ApprovalMode, EventType, Machine, Scope, ScopeKind
from forewarn.service.settings import declared, names

MAX_BYTES = 1024 * 1024
MAX_STEPS = 1_000
SCOPE_OPTIONS = (
    "approval", "approve_user_events", "max_user_operations", "terminate_notice", "minimum_notice",
)  # fmt: skip
MACHINE_OPTIONS = ("ud", "host")


@dataclass(frozen=True, slots=True)
class Step:
    """`lead` is everything before the command: comments and empty lines, kept as they are. `line` is the command's."""

    lead: str
    command: str
    body: tuple[str, ...]
    expected: str
    line: int


def parse_story(text: str, source: str = "story") -> tuple[list[Step], str]:
    """The steps, and what follows the last one; or Invalid with the line."""
    if len(text) > MAX_BYTES:
        raise Invalid(f"{source}: longer than {MAX_BYTES} characters: this is no story")
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
    # One line was added above so that the last block ends; it is no part of the text.
    return steps, "".join(lead[:-1])


def _step(lead: str, block: list[str], source: str, line: int) -> Step:
    """A command, its input, `----` and what is seen; where nothing is expected yet the `----` may be left out."""
    command, *rest = block
    if command == "----":
        raise Invalid(f"{source}: line {line}: there is no command above the `----`")
    end = rest.index("----") if "----" in rest else len(rest)
    body, expected = rest[:end], rest[end + 1 :]
    if "----" in expected:
        again = line + 2 + end + expected.index("----")
        raise Invalid(f"{source}: line {again}: a second `----` in one step: put an empty line between steps")
    return Step(lead, command, tuple(body), "".join(f"{each}\n" for each in expected), line)


def setting(key: str, value: str) -> tuple[str, object]:
    """A setting by its field's name or as people write it, and its value, read."""
    readers = {flat: each.field.metadata["read"] for flat, each in declared().items()}
    name = names().get(key, key)
    if name not in readers:
        raise ValueError(f"{key!r} is no setting")
    return name, int(value) if key.endswith("_s") and value.isdecimal() else readers[name](value)


def fleet_of(lines: Iterable[str]) -> Fleet:
    """`scope NAME KIND [setting=value …]` and `machine SCOPE/NAME [ud=N] [host=H]`."""
    scopes, machines = {}, {}
    for line in lines:
        match line.split():
            case ["scope", name, kind, *rest]:
                scopes[name] = scope_of(name, kind, _options(rest, SCOPE_OPTIONS))
            case ["machine", key, *rest] if key.count("/") == 1:
                options = _options(rest, MACHINE_OPTIONS)
                scope, _, short = key.partition("/")
                domain, host = int(options.get("ud", "0")), options.get("host", "")
                machines[scope, short] = Machine(scope=scope, name=short, update_domain=domain, host=host)
            case _:
                raise ValueError(f"{line!r} is neither `scope NAME KIND …` nor `machine SCOPE/NAME …`")
    return Fleet(scopes, machines)


def _options(words: Iterable[str], known: tuple[str, ...]) -> dict[str, str]:
    options = {}
    for word in words:
        key, is_option, value = word.partition("=")
        if not is_option or key not in known:
            raise ValueError(f"{word!r} is none of {', '.join(f'{each}=…' for each in known)}")
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
    )
