"""What windows and no-go times read beside the scopes and events that a decision is about.

A wave may have events in scopes that a decision does not concern. Whether it is due depends on their windows, so the store
reads these scopes too, if the fleet has windows (`Snapshot.other_scopes`).

A no-go time with labels binds the machines that have them, and a tick reads no machines. So if there is such a no-go time, the
store also reads the labels of the machines in events that have not started. The snapshot then names the machines that each of
these no-go times binds (`Snapshot.no_go_machines`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from forewarn.core.fleet_rules import FleetRules
from forewarn.core.model import UNSTARTED, Event
from forewarn.core.selectors import matches, parse_selector

MachineKey = tuple[str, str]
# The key of a machine, its labels, and those of its host.
LabelsOfMachine = tuple[MachineKey, Mapping[str, str], Mapping[str, str]]


def scopes_to_examine(rules: FleetRules, known: Collection[str], events: Iterable[Event]) -> set[str]:
    """Return the scopes, beside those known, whose windows may hold back one of the events."""
    return {event.scope for event in _bound(events)}.difference(known) if rules.windows else set()


def machines_to_examine(rules: FleetRules, machines: Iterable[MachineKey], events: Iterable[Event]) -> set[MachineKey]:
    """Return the machines whose labels decide what no-go times bind: these, and those of the events that may have to wait."""
    if not any(no_go.labels for no_go in rules.no_go_times.values()):
        return set()
    return {*machines, *((event.scope, name) for event in _bound(events) for name in event.resources)}


def _bound(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events that windows and no-go times may hold back."""
    return (event for event in events if event.status in UNSTARTED and event.one_domain_at_a_time)


def machines_bound(rules: FleetRules, machines: Iterable[LabelsOfMachine]) -> dict[str, frozenset[MachineKey]]:
    """Return, for each no-go time with labels, those of the machines that have them."""
    examined = list(machines)
    terms = {no_go.name: parse_selector(no_go.labels) for no_go in rules.no_go_times.values() if no_go.labels}
    return {
        name: frozenset(key for key, labels, inherited in examined if matches(of_one, labels, inherited))
        for name, of_one in terms.items()
    }
