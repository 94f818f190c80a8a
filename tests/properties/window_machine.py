"""The property machine with windows and no-go times that open and close all the time."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from forewarn.core.fleet import Fleet
from forewarn.core.fleet_rules import NoGoTime, Window
from forewarn.core.model import EventType, MaintenanceRequest, Source, Status, Strategy, Targets
from tests.properties.machine import LATER_S, OPERATOR, SCOPES, HostMachine

# Open a part of every hour. The zone of the second is half an hour off: its minutes are those after 20 and before 50.
WINDOWS = (
    Window(name="first", spans=tuple(f"daily {hour:02}:00-{hour:02}:25" for hour in range(24))),
    Window(
        name="second",
        spans=tuple(f"daily {hour:02}:50-{(hour + 1) % 24:02}:20" for hour in range(24)),
        zone="Asia/Kolkata",
    ),
)
NAMES = tuple(window.name for window in WINDOWS)
# The longest notice of the scopes, rounded up to a second.
MAX_NOTICE = timedelta(seconds=1_801)
SOME_WINDOWS = st.sampled_from([(), ("first",), ("second",), NAMES])


class WindowMachine(HostMachine):
    """The same, with windows on scopes and on maintenances, extensions, and no-go times."""

    @rule(scope=st.sampled_from(SCOPES), windows=SOME_WINDOWS, opens=st.booleans())
    def set_windows(self, scope: str, windows: tuple[str, ...], opens: bool) -> None:
        for window in WINDOWS:
            if window.name in windows:
                self.do(self.control.put_window, window, OPERATOR)
        known = self.store.inventory().scopes[scope]
        wanted = replace(known, windows=windows, approval_opens_window=opens)
        self.do(self.control.apply_fleet, Fleet({scope: wanted}, {}), OPERATOR)

    @rule(scope=st.sampled_from(SCOPES), windows=SOME_WINDOWS, restarts=st.booleans())
    def schedule_in_windows(self, scope: str, windows: tuple[str, ...], restarts: bool) -> None:
        """Roll through a scope, and perhaps restart one of its machines as its user too."""
        request = MaintenanceRequest(
            type=EventType.REBOOT, targets=Targets(scope=scope), strategy=Strategy(windows=windows)
        )
        maintenance_id = self.do(self.control.submit, request, OPERATOR)
        if maintenance_id is not None:
            self.maintenances.append(maintenance_id)
        if restarts:
            machine = Targets(machines=((scope, "m-0"),))
            self.do(
                self.control.submit,
                MaintenanceRequest(type=EventType.REBOOT, targets=machine, source=Source.USER),
                OPERATOR,
            )

    @rule(name=st.sampled_from(NAMES), seconds=LATER_S)
    def extend_a_window(self, name: str, seconds: int) -> None:
        self.do(self.control.extend_window, name, self.clock.now() + timedelta(seconds=seconds), OPERATOR)

    @rule(name=st.sampled_from(NAMES))
    def remove_a_window(self, name: str) -> None:
        self.do(self.control.remove_window, name, OPERATOR)

    @rule(
        scopes=st.sampled_from([(), ("any",), ("all", "pool")]),
        labels=st.sampled_from(["", "rack=r0", "!rack"]),
        later_s=LATER_S,
        lasts_s=LATER_S,
    )
    def add_a_no_go_time(self, scopes: tuple[str, ...], labels: str, later_s: int, lasts_s: int) -> None:
        start = self.clock.now() + timedelta(seconds=later_s)
        end = start + timedelta(seconds=lasts_s + 1)
        no_go = NoGoTime(name="drawn", reason="drawn", start=start, end=end, scopes=scopes, labels=labels)
        self.do(self.control.put_no_go_time, no_go, OPERATOR)

    @rule(scope=st.sampled_from(SCOPES), rack=st.sampled_from([{}, {"rack": "r0"}, {"rack": "r1"}]))
    def label_a_machine(self, scope: str, rack: dict[str, str]) -> None:
        known = self.store.inventory().machines.get((scope, "m-0"))
        if known is not None:
            self.do(self.control.put_machine, replace(known, labels=rack), OPERATOR)

    @rule()
    def remove_the_no_go_time(self) -> None:
        self.do(self.control.remove_no_go_time, "drawn", OPERATOR)

    @invariant()
    def windows_hold_back_only_what_they_bind(self) -> None:
        """A wave that waits for a window is announced only shortly before, and holds up nothing."""
        reasons = {event.id: self.control.why(event.id) for event in self.events(Status.PLANNED, Status.SCHEDULED)}
        outside = {each for each, found in reasons.items() if {"window", "no-go"} & {reason.code for reason in found}}
        for event in self.events(Status.SCHEDULED):
            held_up_by = {other for reason in reasons[event.id] if reason.code == "queue" for other in reason.events}
            assert not held_up_by & outside, f"{event.id} queues behind a wave that waits for its window"
            if event.id not in outside:
                continue
            assert event.one_domain_at_a_time, f"{event.id} waits for a window, which does not bind it"
            assert event.not_before is not None
            assert event.published is not None
            assert event.not_before > self.clock.now(), f"{event.id} is still announced for a window that has closed"
            requested = self.control.maintenance(event.maintenance_id)[0].not_before
            early = event.not_before - event.published > MAX_NOTICE
            assert requested is not None or not early, f"{event.id} was announced long before its window"
