"""The store room owns durable state: the `Store` protocol, its query and value types, and three implementations.

`memory` serves the emulator and simulations, `sqlite` one process, `postgres` several nodes; `sql` is what the two SQL
stores share; `opening` picks the implementation that a URL names. A store keeps what it is given and returns it; it decides
nothing. Of the rest of forewarn, this package imports only `core.model`, `core.operator_model`, `core.change`, `core.progress`
and `core.errors`. It must not import the service, the endpoint, the operator side, the executors or the command line.
"""

from forewarn.store.protocol import (
    MAX_DELIVERIES,
    Backlog,
    Connections,
    Counts,
    EventFirstSeen,
    Feed,
    FeedPosition,
    FeedUpdate,
    HostCount,
    Inventory,
    MachineIdentity,
    MachineLastSeen,
    OpenWave,
    Page,
    SharedStore,
    Store,
    StorePosition,
)
from forewarn.store.queries import (
    MAX_PAGE,
    AuditQuery,
    EventQuery,
    Focus,
    HostQuery,
    IdKind,
    MachineQuery,
    MaintenanceQuery,
    OpenWavesQuery,
    OrderQuery,
    ScopeQuery,
    folded,
    selected_scopes,
)

__all__ = [
    "MAX_DELIVERIES",
    "MAX_PAGE",
    "AuditQuery",
    "Backlog",
    "Connections",
    "Counts",
    "EventFirstSeen",
    "EventQuery",
    "Feed",
    "FeedPosition",
    "FeedUpdate",
    "Focus",
    "HostCount",
    "HostQuery",
    "IdKind",
    "Inventory",
    "MachineIdentity",
    "MachineLastSeen",
    "MachineQuery",
    "MaintenanceQuery",
    "OpenWave",
    "OpenWavesQuery",
    "OrderQuery",
    "Page",
    "ScopeQuery",
    "SharedStore",
    "Store",
    "StorePosition",
    "folded",
    "selected_scopes",
]
