"""Decides whether a behaviour can be tested, and with which of the events that the agent handles."""

from collections.abc import Sequence

from forewarn.testing.conform.behaviours import Behaviour, ShownBy
from forewarn.testing.conform.outcomes import NOT_REACHED, NOT_SHOWN, SKIPPED, NotTested
from forewarn.testing.conform.probe import KindResult, find_unapproved, find_unprepared, kind_list
from forewarn.testing.conform.trial import AgentSetup


def check_claims(behaviour: Behaviour, setup: AgentSetup) -> None:
    """Raise NotTested if the agent does not claim the behaviour."""
    if missing := [claim for claim in behaviour.claims if claim not in setup.claims]:
        raise NotTested(SKIPPED, f"the agent does not claim {', '.join(missing)}")


def select_kinds(behaviour: Behaviour, results: Sequence[KindResult]) -> Sequence[KindResult]:
    """Return the results of the kinds with which to test the behaviour; raise NotTested if there are none.

    If the agent handles none at all, return the kinds that it would have to handle.
    """
    suitable = [each for each in results if behaviour.suits(each.kind)]
    if not suitable:
        raise NotTested(SKIPPED, f"it needs {behaviour.needs_event}, and the agent declares only {kind_list(results)}")
    if behaviour.probe_check is not None:
        return suitable
    _check_prerequisites(behaviour, results)
    usable = [each for each in suitable if _shows_the_claims(each, behaviour)]
    handled = [each for each in results if each.handled]
    if usable or not handled or behaviour.shown_by is not ShownBy.ACTION:
        return usable or suitable
    if any(each.handled for each in suitable):
        raise NotTested(NOT_SHOWN, "it approves no event for which it prepares")
    raise NotTested(NOT_SHOWN, f"it needs {behaviour.needs_event}, and the agent handles only {kind_list(handled)}")


def _check_prerequisites(behaviour: Behaviour, results: Sequence[KindResult]) -> None:
    if "approval" in behaviour.claims and find_unapproved(results, declared=False):
        raise NotTested(NOT_REACHED, "it approved no event of its own: see approves")
    if "prepare" in behaviour.claims and find_unprepared(results, declared=False):
        raise NotTested(NOT_REACHED, "it prepared for no event of its own: see prepares")


def _shows_the_claims(result: KindResult, behaviour: Behaviour) -> bool:
    return (
        result.handled
        and (result.approved or "approval" not in behaviour.claims)
        and (result.prepared or "prepare" not in behaviour.claims)
    )
