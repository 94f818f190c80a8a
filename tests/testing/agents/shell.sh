#!/bin/sh
# Wrong, like many scripts of this kind: POSIX sh and curl, without a JSON parser.
#   - searches for its name in the text, so it also finds longer names
#   - acts on everything that looks like an event, even in an incomplete document
#   - uses a proxy if there is one
#   - hangs up after 6 s
#   - retries at once after a 429, twice
#   - forgets what it prepared when its process ends
#   - approves even if its preparation failed
url="$1/metadata/scheduledevents?api-version=2020-07-01"
me=$2
prepared=""

field() { # the value of a field of an event
    printf '%s' "$1" | sed -n "s/.*\"$2\":\"\([^\"]*\)\".*/\1/p"
}

while :; do
    sleep 0.3
    # One process sends both retries, so that the second follows at once even if processes start slowly.
    document=$(curl -sf -m 6 -H Metadata:true "$url") ||
        document=$(curl -sf -m 6 -H Metadata:true -o /dev/null "$url" "$url") || continue
    listed=$(printf '%s' "$document" | sed 's/{"EventId"/\n&/g' | grep '"EventId"' | grep "\"Resources\":.*$me")
    for id in $prepared; do
        case $listed in
            *"$id"*) ;;
            *) echo "$id" >>"$CONFORM_RECOVERED"; prepared=$(printf '%s\n' $prepared | grep -v "$id") ;;
        esac
    done
    # No pipe into the loop, because the loop must change `prepared` in this shell.
    while read -r event; do
        id=$(field "$event" EventId)
        [ "$(field "$event" EventStatus)" = Scheduled ] || continue
        case " $(echo $prepared) " in *" $id "*) continue ;; esac
        echo "$id" >>"$CONFORM_PREPARED"
        curl -sf -m 20 -H Metadata:true -d "{\"StartRequests\":[{\"EventId\":\"$id\"}]}" "$url" || continue
        prepared="$prepared $id"
    done <<END
$listed
END
done
