"""Builds what a guest boots: the kernel of the machine, and an initial file system with busybox, drivers, Python, the agent.

The kernel is unpacked, and the interpreter is the one that runs this program, with its shared libraries and a compiled
standard library: an emulated processor takes long to compile or inflate. A guest counts its boots on its disk, in the block
after the file system, and shuts down when its power button is pressed. It runs the agent if its disk has the file
`agent.toml`, and `program.py` if its disk has that.
"""

import fcntl
import hashlib
import os
import py_compile
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.build_agent import build, contents

CACHE = Path(__file__).parent.parent.parent / ".kvm-guest"

LZ4_MAGIC = bytes.fromhex("02214c18")
UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH
# The size of a guest's file system. The number of its boots is in the block of 4 KiB behind it.
DISK_MIB = 8
MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "virtio_console", "button", "evdev")
# Parts of the standard library that no guest needs; they are most of its size, and a guest has little memory.
LEFT_OUT = (
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "ensurepip",
    "distutils",
    "pydoc_data",
    "site-packages",
    "asyncio",
    "multiprocessing",
    "unittest",
    "wsgiref",
    "xml",
    "xmlrpc",
)
# These are large, or need large shared libraries: OpenSSL, SQLite, Tk, Kerberos.
LEFT_OUT_EXTENSIONS = (
    "_ssl",
    "_hashlib",
    "_sqlite3",
    "_tkinter",
    "_test",
    "_curses",
    "readline",
    "_dbm",
    "_gdbm",
    "_codecs",
    "_decimal",
    "nis",
)

INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
ln -s /proc/self/fd /dev/fd
for module in $(cat /modules/order); do insmod /modules/$module; done
# A file system without a journal is damaged if the power goes while a program writes to it.
power_off() {
    kill -9 -1
    while grep -q "^/dev/vda .* rw" /proc/mounts && ! mount -o remount,ro /dev/vda /state; do usleep 10000; done
    poweroff -f
}
# An event that comes before a program reads the device is lost.
for device in /sys/class/input/event*; do
    grep -q "Power Button" "$device/device/name" || continue
    exec 9<"/dev/input/${device##*/}"
    (dd bs=24 count=1 of=/dev/null <&9 2>/dev/null; power_off) &
done
for word in $(cat /proc/cmdline); do case $word in guest.*) eval "${word#guest.}";; esac; done
hostname "$name"
ifconfig lo 127.0.0.1
until [ -e /sys/class/net/eth0 ] && [ -e /dev/vda ]; do usleep 10000; done
ifconfig eth0 "$address" netmask 255.255.255.0
route add default gw "$gateway"
mount -t ext4 -o sync /dev/vda /state
boots=$(dd if=/dev/vda bs=4096 skip=BOOTS_BLOCK count=1 2>/dev/null | tr -d '\\0')
echo $((${boots:-0} + 1)) | dd of=/dev/vda bs=4096 seek=BOOTS_BLOCK conv=fsync 2>/dev/null
cd /state
[ -e program.py ] && PYTHON program.py &
while [ -e agent.toml ]; do PYTHON /agent.pyz run --config /state/agent.toml; usleep 200000; done &
while :; do sleep 3600; done
"""


def kernel() -> tuple[Path, str]:
    """Return the newest installed kernel and its version."""
    kernels = [each for each in Path("/boot").glob("vmlinuz-*") if modules_of(each).is_dir()]
    if not kernels:
        raise FileNotFoundError("there is no kernel in /boot with its modules: run scripts/test_tools")
    newest = max(kernels, key=lambda each: [int(n) for n in re.findall(r"\d+", each.name)])
    return newest, modules_of(newest).name


def modules_of(image: Path) -> Path:
    return Path("/lib/modules") / image.name.removeprefix("vmlinuz-")


def unpacked_kernel() -> Path:
    """Return the newest installed kernel as the ELF file that it unpacks itself to, or as it is if LZ4 has not packed it.

    QEMU starts the ELF file directly. A guest that unpacks its kernel takes a fifth longer to boot.
    """
    image, _ = kernel()
    content = image.read_bytes()
    packed = _payload(content)
    if not packed.startswith(LZ4_MAGIC):
        return image
    made = CACHE / f"{hashlib.sha256(content).hexdigest()[:32]}.vmlinux"
    if made.exists():
        return made
    with cache_locked(), tempfile.TemporaryDirectory(dir=CACHE) as folder:
        if made.exists():
            return made
        for old in CACHE.glob("*.vmlinux"):
            old.unlink()
        unpacked = subprocess.run([_program("lz4"), "-dc"], input=packed, capture_output=True, check=True).stdout
        (Path(folder) / "kernel").write_bytes(unpacked)
        (Path(folder) / "kernel").rename(made)
    return made


def _payload(image: bytes) -> bytes:
    """Return the packed kernel inside an image, without its size, which is the last word of it.

    The offsets are those of the boot protocol: https://docs.kernel.org/arch/x86/boot.html
    """
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    return image[start : start + length - 4]


def initrd() -> Path:
    """Return the initial file system of this checkout's agent, made when it is first needed."""
    image, version = kernel()
    sources = [*sorted(contents().items()), (__file__, Path(__file__).read_bytes())]
    digest = hashlib.sha256(repr((str(image), version, sys.version, sources)).encode()).hexdigest()
    made = CACHE / f"{digest[:32]}.cpio"
    if made.exists():
        return made
    with cache_locked(), tempfile.TemporaryDirectory(dir=CACHE) as folder:
        if made.exists():
            return made
        for old in CACHE.glob("*.cpio"):
            old.unlink()
        work = Path(folder) / "root"
        work.mkdir()
        _build_initrd(Path(folder) / "initrd", work)
        (Path(folder) / "initrd").rename(made)
    return made


@contextmanager
def cache_locked() -> Iterator[None]:
    """Let other processes wait for what this one puts into the cache, instead of computing the same."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_initrd(target: Path, work: Path) -> None:
    """Write the initial file system to `target`; `work` is an empty folder for its parts."""
    for name in ("bin", "dev", "proc", "sys", "state", "tmp", "modules"):
        (work / name).mkdir()
    shutil.copy(_program("busybox"), work / "bin/busybox")
    _add_modules(work)
    python = _add_python(work)
    _add_agent(work / "agent.pyz")
    init = work / "init"
    init.write_text(INIT.replace("PYTHON", python).replace("BOOTS_BLOCK", str(DISK_MIB * 256)))
    init.chmod(0o755)
    files = subprocess.run(["find", ".", "-print0"], cwd=work, check=True, capture_output=True).stdout
    with target.open("wb") as out:
        subprocess.run(
            ["cpio", "--null", "--create", "--quiet", "--format=newc", "--owner=0:0"],
            cwd=work, input=files, stdout=out, check=True,
        )  # fmt: skip


def _add_modules(root: Path) -> None:
    _, version = kernel()
    order: list[str] = []
    for module in MODULES:
        shown = subprocess.run(
            [_program("modprobe"), "--set-version", version, "--show-depends", module],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        for path in re.findall(r"^insmod (\S+)", shown, re.MULTILINE):
            if Path(path).name not in order:
                order.append(Path(path).name)
                shutil.copy(path, root / "modules")
    (root / "modules/order").write_text("\n".join(order))


def _add_python(root: Path) -> str:
    """Copy the interpreter, its libraries and the standard library to their own paths below `root`; return its path."""
    interpreter = Path(sys.executable).resolve()
    prefix = Path(sys.base_prefix)
    folder = f"python{sys.version_info.major}.{sys.version_info.minor}"
    extensions = Path(sysconfig.get_config_var("DESTSHARED"))
    taken = [each for each in extensions.glob("*.so") if not each.name.startswith(LEFT_OUT_EXTENSIONS)]
    for binary in (interpreter, *taken):
        _copy(root, binary)
    for library in _libraries([interpreter, *taken]):
        _copy(root, library)
    # The interpreter recognizes this folder, beside itself, by the module `os` in it.
    _copy_library(Path(sysconfig.get_paths()["stdlib"]), root / str(prefix / "lib" / folder).lstrip("/"))
    return f"{interpreter} -s -S"


def _libraries(binaries: list[Path]) -> set[Path]:
    shown = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=True).stdout
    return {Path(path) for path in re.findall(r"(?:=> |^\t)(/\S+)", shown, re.MULTILINE)}


def _copy(root: Path, binary: Path) -> None:
    copy = root / str(binary).lstrip("/")
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(binary, copy)
    copy.chmod(0o755)
    subprocess.run(["strip", "--strip-unneeded", copy], check=True)


def _add_agent(target: Path) -> None:
    """Build the agent's file, and add its modules as compiled: an emulated processor takes seconds to compile them."""
    build(target)
    compiled = target.with_name("compiled.pyc")
    with zipfile.ZipFile(target, "a") as archive:
        for name in [each for each in archive.namelist() if each.endswith(".py")]:
            source = compiled.with_suffix(".py")
            source.write_bytes(archive.read(name))
            py_compile.compile(str(source), str(compiled), dfile=name, doraise=True, invalidation_mode=UNCHECKED)
            archive.write(compiled, f"{name}c")
    compiled.unlink()
    compiled.with_suffix(".py").unlink()


def _copy_library(library: Path, target: Path) -> None:
    """Copy the compiled modules of the standard library, without their sources."""
    for folder, inner, files in os.walk(library):
        inner[:] = [each for each in inner if each not in (*LEFT_OUT, "__pycache__") and "-" not in each]
        here = target / Path(folder).relative_to(library)
        here.mkdir(parents=True, exist_ok=True)
        for source in (Path(folder) / name for name in files if name.endswith(".py")):
            copy = here / f"{source.stem}.pyc"
            compiled = source.parent / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
            if compiled.exists():
                shutil.copyfile(compiled, copy)
            else:
                py_compile.compile(str(source), cfile=str(copy), doraise=True)


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise FileNotFoundError(f"{name} is missing: run scripts/test_tools")
    return found
