"""The seccomp profile RuntimeDefault: a filter of system calls that container runtimes refuse to pods without rights.

The numbers are those of x86-64. A runtime's profile is a list of permitted calls; this one refuses those that the
documents of Docker and containerd name as not permitted, of which an application may have use.
"""

import ctypes
import errno
import platform
import struct

REFUSED = {
    "sysfs": 139, "ustat": 136, "vhangup": 153, "pivot_root": 155, "acct": 163, "settimeofday": 164, "mount": 165,
    "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "iopl": 172, "ioperm": 173, "init_module": 175,
    "delete_module": 176, "quotactl": 179, "lookup_dcookie": 212, "clock_settime": 227, "mbind": 237,
    "set_mempolicy": 238, "get_mempolicy": 239, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250,
    "migrate_pages": 256, "unshare": 272, "move_pages": 279, "perf_event_open": 298, "fanotify_init": 300,
    "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "kcmp": 312, "finit_module": 313,
    "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427,
}  # fmt: skip
CLONE, CLONE3, NEW_NAMESPACES = 56, 435, 0x7E020000
ARCHITECTURE = 0xC000003E  # AUDIT_ARCH_X86_64
PR_SET_SECCOMP, FILTER = 22, 2
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
NUMBER, ARCH, FIRST_ARGUMENT = 0, 4, 16  # offsets in seccomp_data


def program():
    """The instructions: (code, jump if true, jump if false, value)."""
    lines = [(LOAD, 0, 0, ARCH), (EQUAL, 1, 0, ARCHITECTURE), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, NUMBER)]
    for number in sorted(REFUSED.values()):
        lines += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE | errno.EPERM)]
    # The flags of clone3 are in memory, where a filter cannot read them: callers fall back to clone.
    lines += [(EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, REFUSE | errno.ENOSYS)]
    lines += [(EQUAL, 0, 3, CLONE), (LOAD, 0, 0, FIRST_ARGUMENT), (ANY_BIT, 0, 1, NEW_NAMESPACES),
              (RETURN, 0, 0, REFUSE | errno.EPERM), (RETURN, 0, 0, ALLOW)]  # fmt: skip
    return lines


def install():
    """For this process and all that it starts. It needs CAP_SYS_ADMIN or no_new_privs."""
    if platform.machine() != "x86_64":
        raise OSError(errno.ENOSYS, "the seccomp profile of podsim is for x86-64")
    lines = program()
    code = b"".join(struct.pack("HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(code, len(code))
    whole = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.create_string_buffer(whole, len(whole)), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "installing the seccomp profile")
