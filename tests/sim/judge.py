"""The judge: reads what happened in a run, entry by entry, and says every sentence that should be true and is not.

What every commit must obey is in `account`, what was done to machines in `deeds`, what guests saw in `sights`; what was
acknowledged and must still be there is compared by the checker of the crash tests.
"""

from collections.abc import Iterable

from forewarn.core.change import Change
from forewarn.store import Store
from tests.integration.crash import checker
from tests.integration.crash.history import History, saved
from tests.sim.account import Account
from tests.sim.deeds import Deeds
from tests.sim.history import (
    Acknowledged,
    Adopted,
    Alarm,
    Answered,
    Approved,
    Asked,
    Begun,
    Born,
    ClockMoved,
    Committed,
    Entry,
    FailedOver,
    Forgotten,
    Shown,
    Submitted,
    Unanswered,
)
from tests.sim.sights import Notice, Sights


def judge(history: Iterable[Entry], store: Store, *, tolerance_ms: int) -> tuple[list[str], Notice]:
    """The complaints, each once, and how many guests held their notice. The store is looked at as it is in the end."""
    account = Account(tolerance_ms=tolerance_ms)
    deeds, sights = Deeds(account), Sights(account)
    acknowledged: list[Change] = []
    for entry in history:
        match entry:
            case Committed():
                account.commit(entry.at_ms, entry.change, entry.life)
                deeds.committed(entry)
                sights.committed(entry)
            case Acknowledged():
                acknowledged.append(entry.change)
            case Born():
                account.born(entry.at_ms, entry.life)
            case FailedOver():
                account.failed_over(entry.lost, entry.agreements)
                deeds.failed_over(entry)
            case Adopted():
                account.adopted(entry.at_ms, entry.steps)
            case Answered():
                sights.answered(entry)
            case Shown():
                sights.shown(entry)
            case Unanswered():
                sights.unanswered(entry)
            case Approved():
                sights.approved(entry)
            case Submitted():
                sights.submitted(entry)
            case Asked():
                deeds.asked(entry)
            case Begun():
                deeds.begun(entry)
            case Forgotten():
                deeds.forgotten(entry)
            case ClockMoved():
                account.clock_moved(entry.at_ms, entry.by_ms)
            case Alarm():
                account.complain(f"{entry.life} met what no rule foresees: {entry.text}")
    sights.end()
    notice = sights.notice()
    found = checker.read_store(store)
    kept = History(saved=[saved(change) for change in acknowledged if id(change) not in account.lost])
    complaints = [*account.complaints, *checker.complaints(kept, found), *checker.unfinished(found)]
    return list(dict.fromkeys(complaints)), notice
