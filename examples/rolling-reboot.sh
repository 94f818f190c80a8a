#!/bin/sh
# A rolling reboot of a scope by your own tooling, with curl and jq alone: schedule it, take each order when its time has come,
# do the work, report it with the machine's new host, and try again what failed.
#
#   FOREWARN_SERVER=http://127.0.0.1:8170 FOREWARN_TOKEN=… examples/rolling-reboot.sh SCOPE
#
# The work is the program in $WORK, called with the type and the machine (scope/name); it prints the machine's new host.
set -eu
scope=$1
: "${FOREWARN_SERVER:?where the service is}" "${FOREWARN_TOKEN:?an operator token}" "${WORK:?the program that does the work}"

call() { # method, path, [body]
    curl --silent --show-error --fail-with-body --request "$1" "$FOREWARN_SERVER$2" ${3+--data "$3"} \
        --header "Authorization: Bearer $FOREWARN_TOKEN" --header "Idempotency-Key: $(date +%s%N)"
}

plan=$(jq -n --arg scope "$scope" '{type: "Reboot", targets: {scope: $scope}, description: "new kernel"}')
call POST "/v1/maintenances?dry_run=true" "$plan" |
    jq -r '.waves[] | "wave \(.number): \(.events[] | "\(.resources | join(", ")), \(.notice_s) s notice")"'
maintenance=$(call POST /v1/maintenances "$plan" | jq -r .id)
echo "scheduled $maintenance"

tried=" "
while status=$(call GET "/v1/maintenances/$maintenance" | jq -r .status) && [ "$status" != Completed ]; do
    for order in $(call GET "/v1/orders?state=open" | jq -r '.items[].id'); do
        taken=$(call POST "/v1/orders/$order/start")
        machine=$(echo "$taken" | jq -r '.machines[0]')
        if host=$("$WORK" "$(echo "$taken" | jq -r .type)" "$machine"); then
            call POST "/v1/orders/$order/finish" \
                "$(jq -n --arg machine "$machine" --arg host "$host" '{new_hosts: {($machine): $host}}')" >/dev/null
            echo "$machine is done, on $host"
        else
            call POST "/v1/orders/$order/fail" '{"reason": "the work failed"}' >/dev/null
            case $tried in
            *" $order "*) echo "$machine failed twice: giving up" >&2; exit 1 ;;
            esac
            tried="$tried$order "
            echo "$machine failed, once more"
            call POST "/v1/events/$order/retry" >/dev/null
        fi
    done
    sleep 0.2
done
echo "all of $scope is done"
