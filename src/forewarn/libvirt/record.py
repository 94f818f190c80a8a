"""The record of an order in a domain's metadata: what proves after a crash how far the work on a machine came.

A running domain has two definitions: the live one ends with the run of the domain, and the next run begins with a copy of the
persistent one. So the record is written to both with a difference: the live one says `same_run`. A domain that is running with
a record that does not say so was stopped and started since the record was written. Ids of domains prove less: libvirt uses
them again after a restart. The id is recorded for people who read the metadata.
"""

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

NAMESPACE = "urn:forewarn:order"
PREFIX = "forewarn-order"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRecord:
    """`phase` is "begun", "suspended" or "done". `target` and `autostart` are for machines that move."""

    order: str
    attempt: int
    phase: str = "begun"
    domain_id: int
    target: str = ""
    autostart: bool = False
    same_run: bool = False

    def xml(self) -> str:
        attributes = {
            "id": self.order,
            "attempt": str(self.attempt),
            "phase": self.phase,
            "domain-id": str(self.domain_id),
            "target": self.target,
            "autostart": "yes" if self.autostart else "",
            "same-run": "yes" if self.same_run else "",
        }
        element = ElementTree.Element("order", {key: value for key, value in attributes.items() if value})
        return ElementTree.tostring(element, encoding="unicode")


def parse_record(xml: str) -> OrderRecord | None:
    """Return the record, or None if it is not one of ours."""
    try:
        found = ElementTree.fromstring(xml)  # noqa: S314 - from libvirt, which has parsed it
        return OrderRecord(
            order=found.attrib["id"],
            attempt=int(found.attrib["attempt"]),
            phase=found.attrib["phase"],
            domain_id=int(found.attrib["domain-id"]),
            target=found.get("target", ""),
            autostart=found.get("autostart") == "yes",
            same_run=found.get("same-run") == "yes",
        )
    except (ElementTree.ParseError, KeyError, ValueError):
        return None
