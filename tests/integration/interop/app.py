"""The app that the programs of examples/testing test. It approves each event as often as its argument says."""

import sys

from forewarn.guest import Client

client, approved = Client(), set()
for document in client.watch():
    for event in document.events:
        if event.status == "Scheduled" and event.id not in approved:
            approved.add(event.id)
            for _ in range(int(sys.argv[1])):
                client.approve(event)
