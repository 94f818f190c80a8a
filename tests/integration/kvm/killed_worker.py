"""A process that takes an order and kills itself when the work reaches a phase; the tests run it as a program.

`before:PHASE` kills it before the phase is noted in the journal, `after:PHASE` when it is noted. So every moment between two
steps of the work is covered. `never` waits to be killed from outside.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from scripts.kvm_bed.bed import Bed

from forewarn.core.event_types import EventType
from forewarn.core.model import Phase
from forewarn.libvirt.journal import Journal
from tests.integration.kvm.orders import ended, executor_in, work_on


def main() -> None:
    request = json.loads(sys.argv[1])
    when, _, phase = request["moment"].partition(":")

    class KillingJournal(Journal):
        def note(self, machine: str, **values: Any) -> None:
            if when == "before" and values.get("phase") == phase:
                os.kill(os.getpid(), signal.SIGKILL)
            super().note(machine, **values)
            if when == "after" and values.get("phase") == phase:
                os.kill(os.getpid(), signal.SIGKILL)

    hosts: Any = request["bed"]
    bed = Bed(Path(), None, 0, hosts, Path())  # type: ignore[arg-type]
    work = work_on(
        bed, EventType(request["type"]), request["hosts"], order_id=request["order_id"], attempt=request["attempt"],
        phase=Phase(request["phase"]), live=request["live"],
    )  # fmt: skip
    executor = executor_in(Path(request["folder"]), journal_type=KillingJournal)
    executor.take(work)
    print("taken", flush=True)
    print(ended(executor, work), flush=True)


if __name__ == "__main__":
    main()
