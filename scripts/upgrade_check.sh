#!/bin/bash
# Checks that a NEW checkout goes on where an OLD one stopped: scripts/upgrade_check.sh OLD NEW
#
# The OLD service (SQLite, command executor) runs two orders, and an OLD agent has prepared its machine for an event. Both are
# stopped, once by SIGTERM and once by SIGKILL. One command ends while nothing runs. Then the NEW service and the NEW agent start
# on the same database, state folder and journal. Every command must have run once and its order must be done; the agent must
# have prepared once and recovered once. Each checkout needs a `.venv` into which it is installed.
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: $0 OLD NEW" >&2; exit 2; }
old=$(realpath "$1")/.venv/bin
new=$(realpath "$2")/.venv/bin
WITHIN_S=90
for name in ${!FOREWARN_*}; do unset "$name"; done

fail() {
    echo "FAILED: $*" >&2
    tail -n 20 "$folder"/*.log >&2 || true
    exit 1
}

until_true() {  # WHAT COMMAND…: wait until the command succeeds
    local what=$1 end=$((SECONDS + WITHIN_S))
    shift
    until "$@" 2>/dev/null; do
        [ $SECONDS -lt $end ] || fail "not within $WITHIN_S s: $what"
        sleep 0.2
    done
}

is() {  # WHAT EXPECTED FOUND
    [ "$2" = "$3" ] || fail "$1: expected '$2', found '$3'"
    echo "  ok: $1"
}

field() {  # EXPRESSION: of the JSON `d` on standard input
    "$new/python" -c "import json, sys; d = json.load(sys.stdin); print($1)"
}

orders() {  # STATE: how many orders are in it
    "$1/forewarn" order list --state "$2" --json | field 'len(d["items"])'
}
has_orders() { [ "$(orders "$1" "$2")" = "$3" ]; }
begun() { [ "$(wc -l <"$folder/begun")" = "$1" ]; }
prepared() { [ "$(grep -c '"kind":"end"' "$folder/agent/state/journal.jsonl")" = 2 ]; }
in_service() { grep -q '"kind":"in-service"' "$folder/agent/state/journal.jsonl"; }
no_orders_left() { [ -z "$(ls "$folder/state/orders")" ]; }
enabled() { [ "$("$old/forewarn" scope show shop --json | field 'd["enabled"]')" = True ]; }
ended() { compgen -G "$folder/state/orders/$1-1/result.json" >/dev/null; }

start_service() {  # BIN NAME
    "$1/forewarn" serve --config "$folder/serve.toml" >"$folder/$2-service.out" 2>"$folder/$2-service.log" &
    service=$!
    until_true "the $2 service is ready" grep -q ^ready "$folder/$2-service.out"
}

start_agent() {  # BIN NAME
    (cd "$folder/agent" && exec "$1/forewarn-agent" run --config agent.toml) 2>"$folder/$2-agent.log" &
    agent=$!
}

stop_both() {  # SIGNAL EXPECTED: exit code of both
    local pid code
    kill "-$1" "$agent" "$service"
    for pid in "$agent" "$service"; do
        code=0
        wait "$pid" 2>/dev/null || code=$?
        is "$1 ends process with $2" "$2" "$code"
    done
    service= agent=
}

clean_up() {
    touch "$folder/go-a" "$folder/go-b" "$folder/go-shop"
    [ -z "$service" ] || kill -KILL "$service" || true
    [ -z "$agent" ] || kill -KILL "$agent" || true
    sleep 1
    rm -rf "$folder"
}

set_up() {
    local port=$("$new/python" -c 'import socket
with socket.socket() as a, socket.socket() as b:
    a.bind(("127.0.0.1", 0)); b.bind(("127.0.0.1", 0))
    print(a.getsockname()[1], b.getsockname()[1])')
    read -r guest operator <<<"$port"
    export FOREWARN_SERVER=http://127.0.0.1:$operator FOREWARN_TOKEN=a-token-of-the-upgrade-check
    mkdir -m 700 "$folder/agent"
    : >"$folder/begun"
    for scope in a b shop; do
        printf '[[scopes]]\nname = "%s"\nkind = "standalone"\n[[machines]]\nscope = "%s"\nname = "vm"\n' $scope $scope
        [ $scope != shop ] || echo 'addresses = ["127.0.0.1"]'
    done >"$folder/fleet.toml"
    cat >"$folder/command.sh" <<SCRIPT
echo "\$FOREWARN_ORDER_ID \$FOREWARN_ATTEMPT" >>$folder/begun
while [ ! -e $folder/go-\$FOREWARN_SCOPE ]; do sleep 0.1; done
SCRIPT
    cat >"$folder/serve.toml" <<SETTINGS
store = "sqlite:$folder/forewarn.db"
state_dir = "$folder/state"
fleet = "$folder/fleet.toml"
executor = "command"
command = ["/bin/sh", "$folder/command.sh"]
guest = ["127.0.0.1:$guest"]
operator = "127.0.0.1:$operator"
SETTINGS
    cat >"$folder/agent/agent.toml" <<SETTINGS
endpoint = "http://127.0.0.1:$guest"
approve = "never"
state_dir = "state"
[[steps]]
name = "known by the journal alone"
required = true
command = { prepare = ["/bin/sh", "-c", "echo prepare-1 >>did"], recover = ["/bin/sh", "-c", "echo recover-1 >>did"] }
[[steps]]
name = "verified"
required = true
[steps.command]
prepare = ["/bin/sh", "-c", "echo prepare-2 >>did; touch stopped"]
verify = ["test", "-e", "stopped"]
recover = ["/bin/sh", "-c", "echo recover-2 >>did; rm -f stopped"]
SETTINGS
    chmod 600 "$folder/agent/agent.toml"
}

schedule() {  # SCOPE TYPE: the id of its event
    "$old/forewarn" maintenance schedule --type "$2" --scope "$1" --yes --no-notice-ok --json 2>>"$folder/commands.log" |
        field 'd["waves"][0]["events"][0]["id"]'
}

check() {  # SIGNAL EXIT-CODE
    echo "stopped by SIG$1"
    folder=$(mktemp -d /tmp/upgrade-check.XXXXXX) service= agent=
    trap clean_up EXIT
    set_up
    start_service "$old" old
    start_agent "$old" old
    until_true "the agent has asked" grep -q '"kind":"start"' "$folder/agent/state/journal.jsonl"
    until_true "the scope is enabled" enabled
    a=$(schedule a Freeze)
    b=$(schedule b Freeze)
    shop=$(schedule shop Reboot)
    until_true "both commands run" begun 2
    until_true "both orders are running" has_orders "$old" running 2
    until_true "the agent has prepared" prepared
    stop_both "$1" "$2"

    touch "$folder/go-a"
    until_true "the first command has ended while nothing runs" ended "$a"
    start_service "$new" new
    start_agent "$new" new
    until_true "the first order is done" has_orders "$new" done 1
    is "the second order is adopted" 1 "$(orders "$new" running)"
    touch "$folder/go-b"
    until_true "the second order is done" has_orders "$new" done 2
    is "no command ran again" 2 "$(wc -l <"$folder/begun")"
    is "what the agent did so far" "prepare-1 prepare-2" "$(xargs <"$folder/agent/did")"
    "$new/forewarn" event approve "$shop" >/dev/null
    until_true "the third command runs" begun 3
    touch "$folder/go-shop"
    until_true "the third order is done" has_orders "$new" done 3
    until_true "the agent has recovered" in_service

    is "no order failed" 0 "$(orders "$new" failed)"
    is "each command ran once, at the first attempt" "$(printf '%s 1\n' "$a" "$b" "$shop" | sort)" "$(sort "$folder/begun")"
    is "all events are completed" 3 "$("$new/forewarn" event list --status completed --json | field 'len(d["items"])')"
    is "the agent prepared once and recovered once" "prepare-1 prepare-2 recover-2 recover-1" "$(xargs <"$folder/agent/did")"
    is "it came back into service once" 1 "$(grep -c '"kind":"in-service"' "$folder/agent/state/journal.jsonl")"
    until_true "no order's folder is left" no_orders_left
    stop_both TERM 0
    is "the database is whole" ok "$("$new/python" -c 'import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute("PRAGMA integrity_check").fetchone())' "$folder/forewarn.db")"
    clean_up
    trap - EXIT
}

check TERM 0
check KILL 137
echo "the NEW checkout goes on where the OLD one stopped"
