"""Every body that the API reads or writes, by noun. The OpenAPI document is made from these classes.

Unknown keys are refused. Times are RFC 3339 in UTC, durations whole seconds in names that end in `_s`.
"""

from forewarn.operator.api.bodies.admin import *
from forewarn.operator.api.bodies.budget import *
from forewarn.operator.api.bodies.common import *
from forewarn.operator.api.bodies.drills import *
from forewarn.operator.api.bodies.hooks import *
from forewarn.operator.api.bodies.inventory import *
from forewarn.operator.api.bodies.maintenances import *
from forewarn.operator.api.bodies.orders import *
from forewarn.operator.api.bodies.store_hold import *
from forewarn.operator.api.bodies.windows import *
