#!/bin/sh
# Tests how an app handles a Redeploy of vm-0, through the emulator's control API: it must see it, and approve it once.
# Needs curl and jq. Start the app first, with FOREWARN_ENDPOINT set.
# FOREWARN_SERVER is the emulator's operator port, and FOREWARN_TOKEN its token, if it has one.
set -eu
server=${FOREWARN_SERVER:-http://127.0.0.1:8170}
token="Authorization: Bearer ${FOREWARN_TOKEN:-none}"
post() { curl -sS --fail-with-body -H "$token" -H 'Content-Type: application/json' "$server$1" -d "$2"; }
expect() { # a failed expectation answers 409: print its message and the timeline
    verdict=$(post /v1/emulator/expect "$1") ||
        { echo "$verdict" | jq -r '.message // .error.message, .timeline[]?' >&2; exit 1; }
}

curl -sS --fail --output /dev/null --retry 30 --retry-delay 1 --retry-all-errors -H "$token" "$server/readyz"
event=$(post /v1/maintenances '{"type": "Redeploy", "targets": {"machines": ["vm-0"]}}' | jq -er '.waves[0].events[0].id')
expect '{"what": "seen", "event": "'"$event"'", "machine": "vm-0", "within_s": 10}'
post /v1/clock/advance '{"seconds": 120}' >/dev/null
expect '{"what": "approval", "event": "'"$event"'", "machine": "vm-0", "times": 1, "within_s": 10}'
expect '{"what": "seen", "event": "'"$event"'", "machine": "vm-0", "status": "Started", "within_s": 10}'
post "/v1/orders/$event/finish" '{}' >/dev/null
expect '{"what": "no-more"}'
echo "vm-0 saw the Redeploy, approved it once, and saw it start"
