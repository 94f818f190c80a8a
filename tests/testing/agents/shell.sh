#!/bin/sh
# Wrong, as scripts of this kind are: POSIX sh and curl, no JSON reader.
#   - finds its name within a text, so its neighbours' too
#   - acts on whatever looks like an event, be the document whole or not
#   - goes by way of a proxy if there is one
#   - hangs up after 2 s
#   - asks again at once when it is turned away
#   - forgets with its process what it prepared
#   - approves whether or not its preparation worked
url="$1/metadata/scheduledevents?api-version=2020-07-01"
me=$2
prepared=""

field() { # the value of a field of an event
    printf '%s' "$1" | sed -n "s/.*\"$2\":\"\([^\"]*\)\".*/\1/p"
}

while :; do
    sleep 0.3
    document=$(curl -sf -m 2 -H Metadata:true "$url") || document=$(curl -sf -m 2 -H Metadata:true "$url") || continue
    listed=$(printf '%s' "$document" | sed 's/{"EventId"/\n&/g' | grep '"EventId"' | grep "\"Resources\":.*$me")
    for id in $prepared; do
        case $listed in
            *"$id"*) ;;
            *) echo "$id" >>"$CONFORM_RECOVERED"; prepared=$(printf '%s\n' $prepared | grep -v "$id") ;;
        esac
    done
    # No pipe into the loop: what it prepares is to be known afterwards.
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
