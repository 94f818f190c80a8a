#!/bin/sh
# Tests how an app handles a Redeploy of vm-0, through the emulator's control API: it must see and approve it, once.
# Needs curl and jq. Start the app first, with FOREWARN_ENDPOINT set.
# FOREWARN_SERVER is the emulator's operator port, and FOREWARN_TOKEN its token, if it has one.
set -eu
server=${FOREWARN_SERVER:-http://127.0.0.1:8170}
post() {
    curl -sS --fail-with-body -H 'Content-Type: application/json' \
        -H "Authorization: Bearer ${FOREWARN_TOKEN:-none}" "$server$1" -d "$2"
}
expect() { # on failure, print the message and the timeline
    verdict=$(post /v1/emulator/expect "$1")
    echo "$verdict" | jq -e .passed >/dev/null || { echo "$verdict" | jq -r '.message, .timeline[]' >&2; exit 1; }
}

event=$(post /v1/maintenances '{"type": "Redeploy", "targets": {"machines": ["vm-0"]}}' | jq -r '.waves[0].events[0].id')
expect "{\"what\": \"seen\", \"event\": \"$event\", \"machine\": \"vm-0\", \"within_s\": 10}"
post /v1/clock/advance '{"seconds": 120}' >/dev/null
expect "{\"what\": \"approval\", \"event\": \"$event\", \"machine\": \"vm-0\", \"times\": 1, \"within_s\": 10}"
post "/v1/orders/$event/finish" '{}' >/dev/null
echo "vm-0 saw the Redeploy, prepared, and approved it once"
