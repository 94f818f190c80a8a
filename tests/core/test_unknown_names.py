"""The sentence about a name that does not exist."""

from forewarn.core.unknown_names import unknown_name


def test_the_nearest_name_is_suggested() -> None:
    """A near name is suggested; a name that is near to none is answered with the list alone, if there is one."""
    assert (
        unknown_name("key", "hots", ("name", "host")) == "unknown key; did you mean host? The keys here are name, host"
    )
    assert unknown_name("field", "colour", ("name", "host")) == "unknown field; the fields here are name, host"
    assert unknown_name("parameter", "colour", ()) == "unknown parameter; there are no parameters here"
