#!/bin/sh
# The whole cycle with nothing but curl. Usage: curl.sh http://HOST:PORT
set -eu
url="$1/metadata/scheduledevents?api-version=2017-08-01"

document() { curl -sS --fail -H Metadata:true "$url"; }

wait_for() { # until the document matches the pattern
    tries=0
    until document | grep -Eq "$1"; do
        tries=$((tries + 1))
        [ "$tries" -lt 60 ] || { echo "no $1 in the document" >&2; exit 1; }
        sleep 0.4
    done
}

wait_for '"EventStatus":"Scheduled"'
id=$(document | sed -E 's/.*"EventId":"([^"]+)".*/\1/')
echo "seen $id"
# A body given with -d goes out as application/x-www-form-urlencoded.
curl -sS --fail -H Metadata:true -X POST -d "{\"StartRequests\": [{\"EventId\": \"$id\"}]}" "$url"
echo approved
wait_for '"EventStatus":"Started"'
echo started
wait_for '"Events":\[\]'
echo gone
