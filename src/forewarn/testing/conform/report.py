"""The report of a conformance run: rows for people, JSON for programs, JUnit XML for CI. The agent's output is escaped."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from forewarn.testing.conform.behaviours import Behaviour
from forewarn.testing.conform.outcomes import EXIT_CODES, FAILED, NOT_REACHED, NOT_SHOWN, OUTCOMES, PASSED, SKIPPED
from forewarn.testing.conform.probe import KindResult

# Characters that XML 1.0 cannot contain, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class BehaviourRow:
    """The result of one behaviour.

    `output` is the end of the agent's output and `timeline` what the emulator saw, if the behaviour was tested and did not pass.
    """

    behaviour: Behaviour
    outcome: str
    reason: str = ""
    seconds: float = 0.0
    output: str = ""
    timeline: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The rows of a run, and what the agent did about events of its own, by their kinds."""

    command: tuple[str, ...]
    rows: Sequence[BehaviourRow]
    seconds: float
    events: Sequence[KindResult] = ()

    def names(self, outcome: str) -> list[str]:
        return [row.behaviour.name for row in self.rows if row.outcome == outcome]

    @property
    def exit_code(self) -> int:
        """Return 0 only if every row passed or was skipped, and at least one passed."""
        for outcome, code in EXIT_CODES.items():
            if self.names(outcome):
                return code
        return 0 if self.names(PASSED) else EXIT_CODES[NOT_SHOWN]

    def __str__(self) -> str:
        outcomes = [each for each in OUTCOMES if each not in (NOT_REACHED, NOT_SHOWN) or self.names(each)]
        counts = ", ".join(f"{len(self.names(outcome))} {outcome}" for outcome in outcomes)
        return f"{counts}, in {self.seconds:.1f} s"

    def json(self) -> dict[str, Any]:
        return {
            "command": list(self.command),
            "seconds": round(self.seconds, 3),
            **{outcome.replace(" ", "_"): len(self.names(outcome)) for outcome in OUTCOMES},
            "exit_code": self.exit_code,
            "events": [
                {
                    "type": str(each.kind.type),
                    "source": str(each.kind.source),
                    "duration_s": each.kind.duration_s,
                    "seen": each.seen,
                    "approved": each.approved,
                    "prepared": each.prepared,
                    "reason": each.reason,
                }
                for each in self.events
            ],
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
                    "timeline": list(row.timeline),
                }
                for row in self.rows
            ],
        }

    def junit(self) -> bytes:
        """Return JUnit XML with a test case per behaviour; `not reached` and `not shown` are errors, not failures."""
        suite = ElementTree.Element(
            "testsuite",
            name="forewarn conform",
            tests=str(len(self.rows)),
            failures=str(len(self.names(FAILED))),
            errors=str(len(self.names(NOT_REACHED)) + len(self.names(NOT_SHOWN))),
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
                failure = ElementTree.SubElement(case, kind, type=row.outcome, message=_xml_text(row.reason))
                texts = (f"checks: {row.behaviour.checks}", f"why: {row.behaviour.why}", *row.timeline)
                failure.text = _xml_text("\n".join(texts))
                ElementTree.SubElement(case, "system-out").text = _xml_text(row.output)
        ElementTree.indent(suite)
        return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)) + b"\n"


def _xml_text(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
