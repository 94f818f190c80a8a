"""The report of a conformance run: rows for people, JSON for programs, JUnit XML for CI. The agent's output is escaped."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from forewarn.testing.conform.behaviours import Behaviour

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
# The agent never got a document, so nothing is known about the behaviour. This is not a success.
NOT_REACHED = "not reached"
OUTCOMES = (PASSED, FAILED, NOT_REACHED, SKIPPED)
# Characters that XML 1.0 cannot contain, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class BehaviourRow:
    """The result of one behaviour. `output` is the end of the agent's output, if the behaviour did not pass."""

    behaviour: Behaviour
    outcome: str
    reason: str = ""
    seconds: float = 0.0
    output: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    command: tuple[str, ...]
    rows: Sequence[BehaviourRow]
    seconds: float

    def names(self, outcome: str) -> list[str]:
        return [row.behaviour.name for row in self.rows if row.outcome == outcome]

    @property
    def ok(self) -> bool:
        return not self.names(FAILED) and not self.names(NOT_REACHED)

    def __str__(self) -> str:
        outcomes = [each for each in OUTCOMES if each != NOT_REACHED or self.names(each)]
        counts = ", ".join(f"{len(self.names(outcome))} {outcome}" for outcome in outcomes)
        return f"{counts}, in {self.seconds:.1f} s"

    def json(self) -> dict[str, Any]:
        return {
            "command": list(self.command),
            "seconds": round(self.seconds, 3),
            **{outcome.replace(" ", "_"): len(self.names(outcome)) for outcome in OUTCOMES},
            "behaviours": [
                {
                    "name": row.behaviour.name,
                    "claims": list(row.behaviour.claims),
                    "checks": row.behaviour.checks,
                    "why": row.behaviour.why,
                    "outcome": row.outcome,
                    "reason": row.reason,
                    "seconds": round(row.seconds, 3),
                    "output": row.output,
                }
                for row in self.rows
            ],
        }

    def junit(self) -> bytes:
        """Return JUnit XML with a test case per behaviour; `not reached` is an error and not a failure."""
        suite = ElementTree.Element(
            "testsuite",
            name="forewarn conform",
            tests=str(len(self.rows)),
            failures=str(len(self.names(FAILED))),
            errors=str(len(self.names(NOT_REACHED))),
            skipped=str(len(self.names(SKIPPED))),
            time=f"{self.seconds:.3f}",
        )
        for row in self.rows:
            case = ElementTree.SubElement(
                suite, "testcase", classname="conform", name=row.behaviour.name, time=f"{row.seconds:.3f}"
            )
            if row.outcome == SKIPPED:
                ElementTree.SubElement(case, "skipped", message=_xml_text(row.reason))
            elif row.outcome != PASSED:
                kind = "failure" if row.outcome == FAILED else "error"
                failure = ElementTree.SubElement(case, kind, message=_xml_text(row.reason))
                failure.text = _xml_text(f"checks: {row.behaviour.checks}\nwhy: {row.behaviour.why}")
                ElementTree.SubElement(case, "system-out").text = _xml_text(row.output)
        ElementTree.indent(suite)
        return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)) + b"\n"


def _xml_text(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
