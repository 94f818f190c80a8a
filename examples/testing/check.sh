#!/bin/sh
# A Redeploy of vm-0, watched over the emulator's control API: is it seen, approved once, and not before the app was ready?
# Needs curl and jq. FOREWARN_TOKEN is the emulator's token, where it has one. The app under test runs beside it, with FOREWARN_ENDPOINT set; FOREWARN_SERVER is the emulator's operator side.
set -eu
server=${FOREWARN_SERVER:-http://127.0.0.1:8170}
post() {
    curl -sS --fail-with-body -H 'Content-Type: application/json' -H "Authorization: Bearer ${FOREWARN_TOKEN:-none}" "$server$1" -d "$2"
}
expect() { # the verdict's message and timeline are shown when it failed
    verdict=$(post /v1/emulator/expect "$1")
    echo "$verdict" | jq -e .passed >/dev/null || { echo "$verdict" | jq -r '.message, .timeline[]' >&2; exit 1; }
}

event=$(post /v1/maintenances '{"type": "Redeploy", "targets": {"machines": ["vm-0"]}}' | jq -r '.waves[0].events[0].id')
expect "{\"what\": \"seen\", \"event\": \"$event\", \"machine\": \"vm-0\", \"within_s\": 10}"
post /v1/clock/advance '{"seconds": 120}' >/dev/null
expect "{\"what\": \"approval\", \"event\": \"$event\", \"machine\": \"vm-0\", \"times\": 1, \"within_s\": 10}"
post "/v1/orders/$event/finish" '{}' >/dev/null
echo "vm-0 saw the Redeploy, prepared, and approved it once"
