"""The guest side: an SDK and an agent. Uses the standard library only and imports nothing of the rest of forewarn.

from forewarn.guest import Client

for document in Client().watch():
    for event in document.events:
        print(event.type, event.status, event.resources)
"""

from forewarn.guest.client import Client
from forewarn.guest.document import Document, Event
from forewarn.guest.errors import EndpointError, GuestError, Refused
from forewarn.guest.names import Me

__all__ = ["Client", "Document", "EndpointError", "Event", "GuestError", "Me", "Refused"]
