"""The programs of steps: which file a name means, and whether another user could replace that file.

A program runs with the rights of the agent, often those of root. As for the configuration file, every folder and link on its
path counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import List, Sequence, Tuple

from forewarn.guest.errors import StepFailed
from forewarn.guest.system import system


def checked_program(argv: Sequence[str]) -> Tuple[str, ...]:
    """Return the command with the path of its program; raise StepFailed if it is missing or others may write it."""
    path = system.find_program(argv[0])
    if path is None:
        raise StepFailed(f"{Path(argv[0]).name} cannot be run")
    problem = _problem(path)
    if problem:
        raise StepFailed(problem)
    return (path, *argv[1:])


def program_problems(argv: Sequence[str]) -> List[str]:
    """Return what is wrong with the program, as sentences."""
    if system.find_program(argv[0]) is None:
        return [f"{argv[0]} is not a program on this machine"]
    problem = refusal(argv)
    return [problem] if problem else []


def refusal(argv: Sequence[str]) -> str:
    """Return why the program would be refused, or "" if it would run or is missing."""
    path = system.find_program(argv[0])
    return _problem(path) if path is not None else ""


def _problem(path: str) -> str:
    try:
        problem = system.others_may_write(Path(path))
    except OSError as error:
        return f"{path} cannot be run: {error.strerror}"
    return f"{path} is refused: it runs with the rights of this agent, and {problem}" if problem else ""
