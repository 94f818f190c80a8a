"""The plan form: its preview, its confirmation, and wrong input."""

import re

import pytest

from tests.support.portal_client import HOSTILE, MAINTENANCE, PortalClient, hidden_fields, page_text
from tests.support.running_service import FLEET, RunningService, running_service


def test_the_preview_names_started_events_that_block(fresh_service: RunningService) -> None:
    """With a link to the event; the preview saves nothing."""
    operator = PortalClient(fresh_service)
    made = fresh_service.schedule("shop/web-0", emergency=True)
    event = made["waves"][0]["events"][0]["id"]
    fresh_service.service.ticker.advance(1)
    before = len(fresh_service.get("/v1/maintenances?limit=500")["items"])
    page = operator.post("/plan", MAINTENANCE)
    assert "web-0 in shop is in event" in page_text(page)
    assert f'<a href="/events/{event}">{event[:8]}</a>' in page.raw.decode()
    assert "Wave 2" in page_text(page)
    assert len(fresh_service.get("/v1/maintenances?limit=500")["items"]) == before


def test_the_preview_shows_the_whole_request(operator: PortalClient) -> None:
    """Every field that was typed, and the time of each wave."""
    fields = {
        "not_before": "2030-01-03T10:00",
        "earliest": "2030-01-04T11:00",
        "not_after": "2030-01-05T12:00",
        "duration": "1m30s",
        "description": "New kernel & friends",
        "source": "User",
        "on_failure": "continue",
    }
    page = page_text(operator.post("/plan", {**MAINTENANCE, **fields}))
    for text in (
        "Targets scope shop , every update domain",
        "NotBefore 2030-01-03 10:00:00Z",
        "Not earlier than 2030-01-04 11:00:00Z",
        "not earlier than 2030-01-04 11:00:00Z",
        "Deadline 2030-01-05 12:00:00Z",
        "New kernel &amp; friends",
        "If an order fails continue with the rest",
        "Interruption 1m 30s",
        "Expected end 2030-01-",
        "Source User",
    ):
        assert text in page
    platforms = page_text(operator.post("/plan", {**MAINTENANCE, **fields, "source": "Platform"}))
    assert len(re.findall(r"Wave \d: 1 machine in 1 event, [^:]*, not before 2030-01-03 ", platforms)) == 2
    shortly = page_text(operator.post("/plan", MAINTENANCE))
    assert re.search(r"Wave 1: 1 machine in 1 event, 15m notice, not before [^<]* in 1[45]m", shortly)
    assert "Wave 2: 1 machine in 1 event, 15m notice after publication" in shortly
    assert "not earlier than" not in shortly
    assert "Expected end unknown" in shortly


def test_a_strategy_is_planned_and_continued() -> None:
    """The form takes every field, the preview and the page of the maintenance show them, and a button lets it continue."""
    with running_service() as service:
        operator = PortalClient(service)
        strategy = {"group_by": "host", "canary": "1", "bake": "10m", "pause_after": "1", "max_failures": "50%"}
        service.request("PUT", "/v1/windows/always", {"when": ["daily 00:00-24:00"]})
        typed = {
            **MAINTENANCE, **strategy, "on_failure": "continue", "max_parallel": "2", "windows": "always"
        }  # fmt: skip
        page = operator.post("/plan", typed)
        text = "by host, 2 at once, canary 1, bake time 10m, holds at 50% failures, pauses after wave 1"
        text += ", in window always"
        assert f"Strategy {text}" in page_text(page)
        assert "Wave 1: 1 machine in 1 event of rack1-a" in page_text(page)
        assert re.search(r"Starts between 00:10:00Z in 10m and .* may wait for bake, continue", page_text(page))
        assert "End between 00:10:00Z in 10m" in page_text(page)
        shown = operator.post("/plan", {**hidden_fields(page), "step": "change"})
        assert "<details open>\n<summary>Strategy</summary>" in shown.raw.decode()
        confirmed = operator.post("/plan", {**hidden_fields(page), "step": "do", "accept": "yes"})
        path = confirmed.headers["location"].partition("?")[0]
        assert text in page_text(operator.get(path))
        first = service.get(f"/v1{path}")["waves"][0]["events"][0]["id"]
        service.post(f"/v1/orders/{first}/finish")
        service.service.ticker.advance(1)
        assert f'action="{path}/continue"' in operator.get(path).raw.decode()
        assert operator.post(f"{path}/continue", {}).status == 303
        assert f'action="{path}/continue"' not in operator.get(path).raw.decode()
        assert service.get(f"/v1{path}")["status"] == "Running"


def test_the_target_that_is_filled_in_counts(operator: PortalClient) -> None:
    """Whichever target is selected."""
    page = page_text(operator.post("/plan", {**MAINTENANCE, "scope": "", "machines": "shop/web-0"}))
    assert "1 machine in 1 event" in page


def test_labels_and_patterns_choose_the_targets() -> None:
    """Machines of the fleet or of scopes, hosts, or everything; the preview repeats what was typed."""
    labels = '\n[[hosts]]\nname = "rack1-a"\nlabels = { rack = "a3" }\n'
    with running_service(FLEET + labels) as running:
        operator = PortalClient(running)
        plan = {key: value for key, value in MAINTENANCE.items() if key != "scope"}
        for typed, shown in (
            ({"labels": "rack=a3"}, "labels rack=a3"),
            ({"scope": "shop", "names": "web-0 db"}, "no machine of shop has a name like db"),
            ({"scope": "shop", "names": "web-*", "labels": "!rack"}, "scope shop , labels !rack , names web-*"),
            ({"hosts": "rack1-*", "host_labels": "rack=a3"}, "hosts rack1-* , host labels rack=a3"),
            ({"everything": "yes"}, "Targets every machine of the fleet"),
        ):
            page = page_text(operator.post("/plan", {**plan, **typed}))
            assert shown in page
        chosen = page_text(operator.post("/plan", {**plan, "labels": "rack=a3"}))
        assert "2 machines in 2 events" in chosen
        machines = page_text(operator.get("/machines?labels=rack=a3"))
        assert "web-0" in machines
        assert "web-1" not in machines
        wrong = operator.get("/machines?labels=,")
        assert (wrong.status, "a part is empty" in page_text(wrong)) == (400, True)


def test_the_filled_in_target_is_selected_when_the_form_returns(operator: PortalClient) -> None:
    """Whatever was selected: after a refusal, after Change, and from a link that only names hosts."""
    typed = {**MAINTENANCE, "scope": "", "target": "scope", "hosts": "rack1-a"}
    replies = [
        operator.post("/plan", {**typed, "duration": "soon"}),
        operator.post("/plan", {**typed, "step": "change"}),
        operator.get("/plan?kind=maintenance&hosts=rack1-a"),
    ]
    for reply in replies:
        assert re.findall(r'name="target" value="(\w+)" checked', reply.raw.decode()) == ["hosts"]


def test_the_preview_lists_every_event_in_pages() -> None:
    """With the hosts of each; paging saves nothing, and the plan is confirmed from any page."""
    fleet = '[[scopes]]\nname = "shop"\nkind = "availability-set"\n' + "".join(
        f'[[machines]]\nscope = "shop"\nname = "web-{n:02d}"\nupdate_domain = {n}\nhost = "rack-{n:02d}"\n'
        for n in range(50)
    )
    with running_service(fleet) as service:
        service.enable("shop")
        operator = PortalClient(service)
        first, second = (operator.post("/plan", {**MAINTENANCE, "page": page}) for page in ("", "2"))
        listed = [re.findall(r">(rack-\d\d)<", reply.raw.decode()) for reply in (first, second)]
        assert [len(each) for each in listed] == [40, 10]
        assert sorted(listed[0] + listed[1]) == [f"rack-{n:02d}" for n in range(50)]
        assert "Events 41 to 50 of 50." in page_text(second)
        assert "Page 1 of 2 Next page" in page_text(first)
        assert "Page 2 of 2 First page Previous page" in page_text(second)
        assert operator.post("/plan", {**MAINTENANCE, "page": "99"}).status == 200
        assert service.get("/v1/maintenances")["items"] == []
        hidden = hidden_fields(second)
        confirmed = {"step": "do", "seal": hidden["seal"], "key": hidden["key"]}
        assert operator.post("/plan", {**MAINTENANCE, **confirmed}).status == 303


def test_several_scopes_are_planned_together(operator: PortalClient) -> None:
    """Names are separated by spaces or commas; an update domain needs one scope."""
    page = page_text(operator.post("/plan", {**MAINTENANCE, "scope": "shop, blog"}))
    assert re.search(r"Reboot: 3 machines in 3 events", page)
    refused = operator.post("/plan", {**MAINTENANCE, "scope": "shop blog", "update_domain": "1"})
    assert refused.status == 400
    assert "update_domain needs a scope" in page_text(refused)


def test_the_preview_names_open_events_of_the_same_machines() -> None:
    """Events of other machines are not named."""
    many = FLEET + "".join(f'[[machines]]\nscope = "blog"\nname = "many-{n}"\n' for n in range(25))
    with running_service(many) as service:
        service.enable("shop", "blog")
        operator = PortalClient(service)
        events = {name: service.schedule(name)["waves"][0]["events"][0]["id"] for name in ("shop/web-0", "blog/many-3")}
        shop = page_text(operator.post("/plan", MAINTENANCE))
        assert "shop/web-0: event" in shop
        assert "is already scheduled" in shop
        assert f'<a href="/events/{events["shop/web-0"]}">' in operator.post("/plan", MAINTENANCE).raw.decode()
        assert "blog/many-3: event" in page_text(operator.post("/plan", {**MAINTENANCE, "scope": "blog"}))
        other = page_text(operator.post("/plan", {"kind": "restart", "machine": "shop/web-1"}))
        assert "Nothing at the moment" in other


@pytest.mark.parametrize("more", [{}, {"not_before": "2030-01-02T10:00"}], ids=["at once", "at a time"])
def test_a_plan_is_carried_out_only_as_it_was_shown(more: dict[str, str]) -> None:
    """A plan that has changed since its preview is shown again; an unchanged plan is carried out, however late."""
    with running_service() as service:
        service.enable("shop")
        operator = PortalClient(service)
        form = {**MAINTENANCE, **more}
        preview = operator.post("/plan", form)
        service.service.ticker.advance(7)
        fleet = service.get("/v1/fleet")
        (moved,) = [m for m in fleet["machines"] if m["name"] == "web-1"]
        moved["update_domain"] = 0
        service.post("/v1/fleet", fleet)
        sure = {**form, "step": "do", **{name: hidden_fields(preview)[name] for name in ("seal", "key")}}
        refused = operator.post("/plan", sure)
        assert refused.status == 409
        assert "The plan has changed since the last preview" in page_text(refused)
        assert "2 machines in 1 event" in page_text(refused)
        assert operator.post("/plan", {**sure, "seal": ""}).status == 409
        assert service.get("/v1/maintenances")["items"] == []
        service.service.ticker.advance(7)
        again = {**sure, **{name: hidden_fields(refused)[name] for name in ("seal", "key")}}
        assert operator.post("/plan", again).status == 303
        assert len(service.get("/v1/maintenances")["items"]) == 1


def test_other_line_ends_are_no_change(fresh_service: RunningService) -> None:
    """Browsers submit a field of several lines with other line ends than they received."""
    operator = PortalClient(fresh_service)
    form = {**MAINTENANCE, "scope": "", "target": "machines", "machines": "shop/web-0\r\nshop/web-1", "type": "Freeze"}
    hidden = hidden_fields(operator.post("/plan", form))
    sure = {"step": "do", "seal": hidden["seal"], "key": hidden["key"], "machines": "shop/web-0\nshop/web-1"}
    done = operator.post("/plan", {**form, **sure})
    assert done.status == 303


@pytest.mark.parametrize("form", [MAINTENANCE, {"kind": "restart", "machine": "shop/web-0"}], ids=["many", "one"])
def test_a_plan_with_warnings_needs_a_tick(form: dict[str, str]) -> None:
    """A plan without notice is carried out only with its box ticked, be it a maintenance or the restart of one machine."""
    with running_service() as running:
        operator = PortalClient(running)
        preview = operator.post("/plan", form)
        assert "gives no notice to shop" in page_text(preview)
        assert '<input type="checkbox" name="accept" value="yes" required>' in preview.raw.decode()
        refused = operator.confirm(form, accept="")
        assert refused.status == 409
        assert "tick the box that accepts the warnings" in page_text(refused)
        assert running.get("/v1/events")["items"] == []
        assert operator.confirm(form).status == 303
        assert [event["status"] for event in running.get("/v1/events?status=Started")["items"]] == ["Started"]


def test_a_plan_without_warnings_needs_no_tick(fresh_service: RunningService) -> None:
    """The preview has no box."""
    operator = PortalClient(fresh_service)
    assert 'name="accept"' not in operator.post("/plan", MAINTENANCE).raw.decode()
    assert operator.confirm(MAINTENANCE, accept="").status == 303


def test_a_not_before_that_has_passed_is_shown(operator: PortalClient) -> None:
    """The preview warns; nothing is saved without a tick."""
    page = operator.post("/plan", {**MAINTENANCE, "not_before": "2001-01-01T00:00"})
    assert "not_before has passed (2001-01-01 00:00:00Z)" in page_text(page)
    assert operator.confirm({**MAINTENANCE, "not_before": "2001-01-01T00:00"}, accept="").status == 409


def test_lost_notice_is_shown_before_it_is_confirmed() -> None:
    """If the guests stop polling after the preview, the plan would give no notice, so it is shown again."""
    with running_service() as running:
        running.enable("shop")
        operator = PortalClient(running)
        preview = operator.post("/plan", MAINTENANCE)
        assert "15m notice" in page_text(preview)
        running.service.ticker.advance(25 * 3_600)
        assert not running.get("/v1/scopes/shop")["enabled"]
        operator = PortalClient(running)  # the first login has ended meanwhile
        refused = operator.post("/plan", {**MAINTENANCE, "step": "do", **hidden_fields(preview)})
        assert refused.status == 409
        assert "no notice" in page_text(refused)
        assert running.get("/v1/events")["items"] == []


@pytest.mark.parametrize(
    "typed, text",
    [
        ({"scope": ""}, "choose scopes, labels, hosts, machines or every machine"),
        ({"scope": "nowhere"}, "there is no scope"),
        ({"update_domain": "x"}, "is not a whole number"),
        ({"update_domain": "1_0"}, "is not a whole number"),
        ({"update_domain": "100000000000099"}, "is not a whole number of at most"),
        ({"duration": "90"}, "duration: &#39;90&#39; is not a duration: write numbers with units"),
        ({"machines": "shop/web-0"}, "scope and machines are filled in"),
        ({"scope": "", "machines": "shop/web-0", "update_domain": "1"}, "it needs a scope"),
        ({"update_domain": "1234567"}, "update_domain"),
        ({"not_before": "tomorrow"}, "not_before"),
        ({"type": "Explode"}, "type"),
        (
            {"target": "machines", "scope": "", "machines": "web-9"},
            "there is no machine web-9: check its name in the fleet",
        ),
        ({"target": "nothing"}, "choose scopes"),
        ({"labels": "rack=z9"}, "no machine of shop has labels like rack=z9"),
        ({"labels": "rack=a3,"}, "a part is empty"),
        ({"scope": "", "names": "x-*"}, "no machine has a name like x-*"),
        ({"everything": "yes"}, "scope and everything are filled in"),
        ({"scope": "", "labels": "gpu", "hosts": "rack1-a"}, "scope and hosts are filled in"),
        ({"emergency": "yes", "not_before": "2031-01-01T00:00"}, "an emergency starts at once"),
        ({"description": "x" * 2_000}, "description"),
        ({"duration": "31d"}, "duration_s"),
        ({"kind": "restart", "machine": "web-0"}, "write it as scope/name"),
        ({"kind": "restart", "machine": "shop/web-0/x"}, "there is no"),
        ({"kind": "restart", "machine": HOSTILE}, "there is no"),
    ],
    ids=str,
)
def test_a_wrong_plan_returns_with_its_input(operator: PortalClient, typed: dict[str, str], text: str) -> None:
    """The API's message is above the form, and every field is as it was typed."""
    reply = operator.post("/plan", {**MAINTENANCE, "description": "as typed", **typed})
    assert 400 <= reply.status < 500
    assert text in page_text(reply)
    if "description" not in typed:
        assert 'value="as typed"' in reply.raw.decode()
    assert "<script>alert" not in reply.raw.decode()


def test_a_drill_is_scheduled() -> None:
    """By an operator and by an owner. The preview says what a drill does, and nothing is saved before the confirmation."""
    with running_service() as service:
        service.enable("shop", "blog")
        operator = PortalClient(service)
        typed = {"kind": "drill", "drill_type": "Freeze", "drill_scopes": "shop", "step": "preview"}
        times = {"drill_hold": "2m", "drill_not_before": "2030-01-03T10:00", "drill_description": "a rehearsal"}
        page = operator.post("/plan", {**typed, **times})
        shown = page_text(page)
        for text in (
            "Drill of a Freeze: 2 machines in 2 events, 2 waves",
            "These machines really drain and fail over. Nothing touches them.",
            "Targets scopes shop NotBefore 2030-01-03 10:00:00Z",
            "An event ends 2m after its start Description a rehearsal",
        ):
            assert text in shown
        assert service.get("/v1/drills")["items"] == []
        done = operator.post("/plan", {**hidden_fields(page), "step": "do"})
        (drill,) = service.get("/v1/drills")["items"]
        assert done.headers["location"] == f"/drills/{drill['id']}?done=planned"
        assert (drill["type"], drill["hold_s"], drill["description"]) == ("Freeze", 120, "a rehearsal")
        owner = PortalClient(service, service.token_of("owner", "blog"))
        assert 'value="drill" checked' in owner.get("/plan?kind=drill").raw.decode()
        machines = {**typed, "drill_scopes": "", "drill_machines": "blog/db"}
        page = owner.post("/plan", machines)
        assert "as soon as the notice allows" in page_text(page)
        owner.post("/plan", {**hidden_fields(page), "step": "do"})
        assert len(service.get("/v1/drills")["items"]) == 2
        assert owner.post("/plan", typed).status == 403
        for targets in ({"drill_scopes": ""}, {"drill_machines": "shop/web-0"}):
            refused = operator.post("/plan", {**typed, **targets})
            assert (refused.status, "not both" in page_text(refused)) == (422, True)
