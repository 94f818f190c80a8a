#!/bin/sh
# A rolling reboot of a scope by your own tooling, with curl and jq alone: schedule it, take each order when its time has come,
# do the work on every machine of it, report it with the machines' new hosts, and try once more what failed.
#
#   FOREWARN_SERVER=http://127.0.0.1:8170 FOREWARN_TOKEN=… WORK=./reboot-one examples/rolling-reboot.sh SCOPE
#
# The work is the program in $WORK, called with the type and one machine (scope/name); it prints the machine's new host.
set -eu
scope=$1
: "${FOREWARN_SERVER:?where the service is}" "${FOREWARN_TOKEN:?an operator token}" "${WORK:?the program that does the work}"

call() { # method, path, [body]: prints the answer, or what was wrong, and then it ends
    curl --silent --show-error --fail-with-body --request "$1" "$FOREWARN_SERVER$2" ${3+--data "$3"} \
        --header "Authorization: Bearer $FOREWARN_TOKEN" ${key:+--header "Idempotency-Key: $key"}
}

work() { # the order's type and machines: prints what the order's end should say of their hosts
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
# Asked again after a broken connection, the same key gets the same answer.
made=$(key="rolling-reboot-$scope-$$" && call POST /v1/maintenances "$plan") || exit 1
maintenance=$(printf %s "$made" | jq -r .id)
echo "scheduled $maintenance"

while :; do
    shown=$(call GET "/v1/maintenances/$maintenance") || exit 1
    case $(printf %s "$shown" | jq -r .status) in
    Completed) break ;;
    Cancelled | Failed) echo "it ended otherwise: $(printf %s "$shown" | jq -r .status)" >&2; exit 1 ;;
    esac
    open=$(call GET "/v1/orders?maintenance=$maintenance&state=open") || exit 1
    for order in $(printf %s "$open" | jq -r '.items[].id'); do
        taken=$(call POST "/v1/orders/$order/start") || continue # somebody else took it
        attempt=$(printf %s "$taken" | jq .attempt)
        machines=$(printf %s "$taken" | jq -r '.machines | join(" ")')
        if hosts=$(work "$(printf %s "$taken" | jq -r .type)" "$machines"); then
            call POST "/v1/orders/$order/finish" "{\"attempt\": $attempt, \"new_hosts\": $hosts}" >/dev/null
            echo "$machines: done"
        else
            call POST "/v1/orders/$order/fail" "{\"attempt\": $attempt, \"reason\": \"the work failed\"}" >/dev/null
            [ "$attempt" -lt 2 ] || { echo "$machines: failed twice, giving up" >&2; exit 1; }
            echo "$machines: failed, once more"
            call POST "/v1/events/$order/retry" >/dev/null
        fi
    done
    sleep 0.2
done
echo "all of $scope is done"
