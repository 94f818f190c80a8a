"""Bodies of the API's responses, for tests that need no server."""

from typing import Any

NOW = "2030-01-31T12:00:00Z"
FIRST_ID = "AAAAAAAA-0000-0000-0000-000000000001"
SECOND_ID = "AAAAAAAA-0000-0000-0000-000000000002"


def waiting(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"code": code, "message": message, **more}


IN_DOUBT = waiting("in-doubt", "its work may have begun, and its end is not known")
ORDER_FAILED = waiting("order-failed", "its order failed (disk on fire)")


def event(event_id: str = FIRST_ID, **changed: Any) -> dict[str, Any]:
    return {
        "id": event_id,
        "maintenance_id": "BBBBBBBB-0000-0000-0000-000000000001",
        "wave": 1,
        "group": "",
        "scope": "shop",
        "update_domain": 0,
        "type": "Reboot",
        "status": "Scheduled",
        "source": "Platform",
        "resources": ["web-0"],
        "description": "",
        "duration_s": -1,
        "published": NOW,
        "not_before": "2030-01-31T12:15:00Z",
        "notice_s": 900,
        "approved_by": [],
        "started": None,
        "ended": None,
        "reason": "",
        "waiting_for": [],
        "timeline": [],
        "replaces": "",
        "replaced_by": "",
        **changed,
    }


def order(event_id: str = FIRST_ID, **changed: Any) -> dict[str, Any]:
    return {
        "id": event_id,
        "maintenance_id": "BBBBBBBB-0000-0000-0000-000000000001",
        "state": "failed",
        "scope": "shop",
        "type": "Reboot",
        "machines": ["shop/web-0"],
        "hosts": ["rack0"],
        "host": "",
        "attempt": 1,
        "reason": "disk on fire",
        **changed,
    }


def progress(**counts: int) -> dict[str, int]:
    return {"done": 0, "running": 0, "failed": 0, "in_doubt": 0, "left": 0, "undone": 0, **counts}


def maintenance(*events: dict[str, Any], **changed: Any) -> dict[str, Any]:
    waves: dict[int, list[dict[str, Any]]] = {}
    for each in events:
        waves.setdefault(each["wave"], []).append(each)
    return {
        "id": "BBBBBBBB-0000-0000-0000-000000000001",
        "type": "Reboot",
        "source": "Platform",
        "status": "Running",
        "paused": False,
        "held": False,
        "awaits_continue": False,
        "needs_operator": [],
        "description": "",
        "duration_s": -1,
        "emergency": False,
        "on_failure": "hold",
        "created": NOW,
        "created_by": "operator",
        "not_before": None,
        "earliest": None,
        "not_after": None,
        "drill_hold_s": 0,
        "ended": None,
        "targets": {"count": 1, "scopes": ["shop"]},
        "progress": progress(left=len(events)),
        "estimated_end": None,
        "host_mode": None,
        "return_machines": False,
        "to_host": "",
        "failed_hosts": 0,
        "host_progress": None,
        "strategy": {
            "group_by": "update-domain",
            "max_parallel": 1,
            "canary": 0,
            "bake_s": 0,
            "max_failures": "",
            "pause_after": 0,
            "windows": [],
        },
        "hosts": [],
        "waves": [{"number": number, "events": members} for number, members in sorted(waves.items())],
        **changed,
    }
