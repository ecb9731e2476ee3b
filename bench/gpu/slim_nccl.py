"""Writes libnccl to standard output with the machine code of one architecture only. All other machine code becomes
zeros in the same places, which compress to almost nothing.

    python3 slim_nccl.py libnccl.so.2 90 | gzip >libnccl.so.2.gz

A fat binary is a header and entries, each with a header that names its architecture; a driver skips entries of other
architectures. Entries for linking (in __nv_relfatbin) and debug sections become zeros too.
"""

import struct
import sys

MAGIC = 0xBA55ED50
PTX, ELF = 1, 2


def sections(image):
    """Yields name, offset and size of each section of the ELF file."""
    (table,) = struct.unpack_from("<Q", image, 40)
    count, names = struct.unpack_from("<HH", image, 60)
    rows = [struct.unpack_from("<IIQQQQ", image, table + 64 * i) for i in range(count)]
    for name, _, _, _, offset, size in rows:
        start = rows[names][4] + name
        yield image[start : image.index(b"\0", start)].decode(), offset, size


def entries(image, offset, size):
    """Yields kind, architecture, offset and size of each entry's contents, in all fat binaries of a section."""
    at, end = offset, offset + size
    while at + 16 <= end:
        magic, _, header, length = struct.unpack_from("<IHHQ", image, at)
        if magic != MAGIC:
            at += 8  # padding
            continue
        at += header
        stop = at + length
        while at < stop:
            kind, _, header, length = struct.unpack_from("<HHIQ", image, at)
            (architecture,) = struct.unpack_from("<I", image, at + 28)
            if kind not in (PTX, ELF) or at + header + length > stop:
                sys.exit(f"slim_nccl: the entry at {at} is of an unknown kind")
            yield kind, architecture, at + header, length
            at += header + length


def slim(image, architecture):
    kept = 0
    for name, offset, size in sections(image):
        if name.startswith(".debug_"):
            image[offset : offset + size] = bytes(size)
        if name not in (".nv_fatbin", "__nv_relfatbin"):
            continue
        for kind, of, start, length in entries(image, offset, size):
            if name == ".nv_fatbin" and kind == ELF and of == architecture:
                kept += 1
            else:
                image[start : start + length] = bytes(length)
    return kept


def main():
    if len(sys.argv) != 3 or not sys.argv[2].isdigit():
        sys.exit(__doc__)
    with open(sys.argv[1], "rb") as file:
        image = bytearray(file.read())
    if not slim(image, int(sys.argv[2])):
        sys.exit(f"slim_nccl: {sys.argv[1]} has no machine code for sm_{sys.argv[2]}")
    sys.stdout.buffer.write(image)


if __name__ == "__main__":
    main()
