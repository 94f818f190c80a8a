#!/bin/sh
# Reboot all machines of a scope with your own program; needs only curl and jq.
# The script schedules the maintenance and takes each order when it is open.
# It does the work on every machine of the order, reports the machines' new hosts, and retries a failed order once.
#
#   FOREWARN_SERVER=http://127.0.0.1:8170 FOREWARN_TOKEN=… WORK=./reboot-one examples/rolling-reboot.sh SCOPE
#
# $WORK is the program that does the work. Its arguments are the type and one machine (scope/name).
# It prints the machine's new host.
set -eu
scope=$1
: "${FOREWARN_SERVER:?where the service is}" "${FOREWARN_TOKEN:?an operator token}" "${WORK:?the program that does the work}"

call() { # method, path, [body]: print the response; on an error print it and fail
    curl --silent --show-error --fail-with-body --request "$1" "$FOREWARN_SERVER$2" ${3+--data "$3"} \
        --header "Authorization: Bearer $FOREWARN_TOKEN" --header 'Content-Type: application/json' ${key:+--header "Idempotency-Key: $key"}
}

work() { # type, machines: do the work on each machine and print their new hosts as JSON
    hosts='{}'
    for machine in $2; do
        host=$("$WORK" "$1" "$machine") || return 1
        hosts=$(printf %s "$hosts" | jq -c --arg machine "$machine" --arg host "$host" '. + {($machine): $host}')
    done
    printf %s "$hosts"
}

plan=$(jq -n --arg scope "$scope" '{type: "Reboot", targets: {scope: $scope}, description: "new kernel"}')
call POST "/v1/maintenances?dry_run=true" "$plan" |
    jq -r '.waves[] | "wave \(.number): \(.events[] | "\(.resources | join(", ")), \(.notice_s) s notice")"'
# If the connection breaks, a repeated request with the same key gets the same answer.
made=$(key="rolling-reboot-$scope-$$" && call POST /v1/maintenances "$plan") || exit 1
maintenance=$(printf %s "$made" | jq -r .id)
echo "scheduled $maintenance"

while :; do
    shown=$(call GET "/v1/maintenances/$maintenance") || exit 1
    case $(printf %s "$shown" | jq -r .status) in
    Completed) break ;;
    Cancelled | Failed) echo "it did not complete: $(printf %s "$shown" | jq -r .status)" >&2; exit 1 ;;
    esac
    open=$(call GET "/v1/orders?maintenance=$maintenance&state=open") || exit 1
    for order in $(printf %s "$open" | jq -r '.items[].id'); do
        taken=$(call POST "/v1/orders/$order/start") || continue # another executor took it
        attempt=$(printf %s "$taken" | jq .attempt)
        machines=$(printf %s "$taken" | jq -r '.machines | join(" ")')
        if hosts=$(work "$(printf %s "$taken" | jq -r .type)" "$machines"); then
            call POST "/v1/orders/$order/finish" "{\"attempt\": $attempt, \"new_hosts\": $hosts}" >/dev/null
            echo "$machines: done"
        else
            call POST "/v1/orders/$order/fail" "{\"attempt\": $attempt, \"reason\": \"the work failed\"}" >/dev/null
            [ "$attempt" -lt 2 ] || { echo "$machines: failed twice, giving up" >&2; exit 1; }
            echo "$machines: failed, trying again"
            call POST "/v1/events/$order/retry" >/dev/null
        fi
    done
    sleep 0.2
done
echo "all of $scope is done"
