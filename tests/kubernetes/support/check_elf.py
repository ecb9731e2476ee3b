"""Counts the machine code in the image's farandole, and names its machines: they must be the one that runs it."""

import os
import platform
import struct
from pathlib import Path

MACHINES = {62: "x86_64", 183: "aarch64"}
found = {}
for path in Path("/opt/farandole").rglob("*"):
    if not path.is_file() or path.is_symlink():
        continue
    with open(path, "rb") as file:
        head = file.read(20)
    if head[:4] == b"\x7fELF":
        found.setdefault(MACHINES[struct.unpack_from("<H", head, 18)[0]], []).append(os.fspath(path))
assert any("libfarandole" in path for path in found[platform.machine()])
others = [path for machine, paths in found.items() if machine != platform.machine() for path in paths]
print(f"elf: {len(found[platform.machine()])} files, of {platform.machine()} alone" if not others else f"elf: {others}")
