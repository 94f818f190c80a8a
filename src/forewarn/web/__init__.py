"""The HTTP edge: who is calling, what guests and operators may ask. With `server` the only code that knows a framework."""
