"""The story of the failures: a maintenance over 40 hosts in four waves, in whose second wave three orders fail once.

The work is simulated on a clock that the test moves. The scopes get no notice, because no machine has polled.
"""

from contextlib import AbstractContextManager

from tests.support.running_service import RunningService, running_service

HOSTS = [f"host-{number:02}" for number in range(40)]
WAVES, PER_WAVE = 4, 10
# Each fails at the first attempt and succeeds at the second.
FAILING = ("s1/vm-1", "s4/vm-1", "s7/vm-1")
WORK_S = 600
FLEET = "".join(f'[[scopes]]\nname = "s{scope}"\nkind = "availability-set"\n' for scope in range(PER_WAVE)) + "".join(
    f'[[machines]]\nscope = "s{number % PER_WAVE}"\nname = "vm-{number // PER_WAVE}"\n'
    f'update_domain = {number // PER_WAVE}\nhost = "{host}"\n'
    for number, host in enumerate(HOSTS)
)


def running() -> AbstractContextManager[RunningService]:
    """Run a service with this fleet, whose simulated work fails as the story says."""
    failures = " ".join(f"{machine}=1" for machine in FAILING)
    return running_service(FLEET, executor="simulated", simulated_work=f"{WORK_S}s", simulated_failures=failures)
