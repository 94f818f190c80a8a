"""Access lists of Windows as text: those of a fresh Windows Server, and who may change what they protect."""

import pytest

from forewarn.guest.system.access_lists import ADMINISTRATORS, READ, REPLACE, WRITE, AccessList

ME = "S-1-5-21-1-2-3-1001"
INSTALLER = "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"
DRIVE = f"O:{INSTALLER}D:PAI(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;0x1200a9;;;BU)(A;CI;LC;;;BU)(A;CIIO;DC;;;BU)"
PROGRAM_DATA = "O:SYD:PAI(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICIIO;GA;;;CO)(A;OICI;0x1200a9;;;BU)(A;CI;DCLCRPCR;;;BU)"
PROGRAM = (
    f"O:{INSTALLER}D:PAI(A;;0x1200a9;;;SY)(A;;0x1200a9;;;BA)(A;;0x1200a9;;;BU)(A;;FA;;;{INSTALLER})(A;;0x1200a9;;;AC)"
)
OWN_FOLDER_ON_DRIVE = "O:BAD:AI(A;OICIID;FA;;;SY)(A;OICIID;FA;;;BA)(A;ID;0x1301bf;;;AU)(A;OICIIOID;SDGXGWGR;;;AU)"
PRIVATE = f"O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;{ME})"


@pytest.mark.parametrize(
    ("sddl", "rights", "others"),
    [
        (DRIVE, REPLACE, ()),
        (DRIVE, WRITE, ("BU",)),
        (PROGRAM_DATA, REPLACE, ()),
        (PROGRAM_DATA, WRITE, ("BU",)),
        (PROGRAM, WRITE, ()),
        (PROGRAM, READ, ("BU", "AC")),
        (OWN_FOLDER_ON_DRIVE, REPLACE, ("AU",)),
        (PRIVATE, READ, ()),
        (f"O:{ME}D:P(A;;FA;;;OW)(D;;FA;;;WD)", READ, ()),
        (f"O:{ME}D:P(XA;;FW;;;AU;(x))", WRITE, ("AU",)),
        (f"O:{ME}D:P(A;;ZZ;;;BU)", WRITE, ("BU",)),
        (f"O:{ME}D:P", READ, ()),
        (f"O:{ME}D:NO_ACCESS_CONTROL", WRITE, ("S-1-1-0",)),
        (f"O:{ME}", WRITE, ("S-1-1-0",)),
    ],
)
def test_who_else_has_a_right(sddl: str, rights: int, others: tuple[str, ...]) -> None:
    """Users may add files to %ProgramData%, but not exchange those of others; a file without a list is open to all."""
    assert AccessList.parse(sddl).others_with(rights, (*ADMINISTRATORS, ME)) == others


@pytest.mark.parametrize(
    ("sddl", "owner"), [("O:BAG:SYD:", "S-1-5-32-544"), (DRIVE, INSTALLER), (f"O:{ME}", ME), ("D:(A;;FA;;;SY)", "")]
)
def test_the_owner(sddl: str, owner: str) -> None:
    """Abbreviated SIDs are written out; a file without an owner has none."""
    assert AccessList.parse(sddl).owner == owner
