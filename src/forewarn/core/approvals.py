"""When the approvals recorded on an event are enough."""

from forewarn.core.model import ApprovalMode, Event


def approved(event: Event) -> bool:
    """Whether the recorded approvals are enough for this event."""
    if not event.approvals:
        return False
    machines = {a.machine for a in event.approvals}
    if "" in machines:  # an operator's approval counts for all machines
        return True
    if event.approval_mode is ApprovalMode.ALL:
        return machines.issuperset(event.resources)
    return event.approval_mode is ApprovalMode.ANY
