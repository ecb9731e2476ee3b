"""A program that holds one pod's namespaces and runs its containers in them.

It reads commands as lines of JSON from its input and writes events to its output. When its parent ends, even by
SIGKILL, the kernel kills it with everything in the pod, so that no process of a pod outlives the simulation.
"""

import ctypes
import ctypes.util
import json
import os
import select
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import seccomp

LIBC = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUTS, NEWIPC, NEWPID, NEWNET = 0x00020000, 0x04000000, 0x08000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
MIB = 1 << 20


def check(result):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def unshare(flags):
    check(LIBC.unshare(flags))


def mount(source, target, kind=None, flags=0, data=None):
    code = [None if one is None else one.encode() for one in (source, target, kind, data)]
    if LIBC.mount(code[0], code[1], code[2], ctypes.c_ulong(flags), code[3]) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def send(**what):
    os.write(1, (json.dumps(what) + "\n").encode())


def die_with_parent(parent):
    check(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(1)


def die_with_helper(its_pipe):
    """Ends this process when its helper ends. The helper is outside of the container's PID namespace, so
    getppid() always
    returns 0; instead the end of its pipe shows whether it has ended already."""
    check(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if select.select([its_pipe], [], [], 0)[0]:
        os._exit(1)


def put(root, path, text=b"", mode=0o644):
    place = root + path
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(place, "wb") as file:
        file.write(text)
    os.chmod(place, mode)


def make_devices(root):
    mount("tmpfs", root + "/dev", "tmpfs", MS_NOSUID, "mode=755,size=64k")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        put(root, "/dev/" + name)
        mount("/dev/" + name, root + "/dev/" + name, None, MS_BIND)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
                         ("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx")):  # fmt: skip
        os.symlink(target, f"{root}/dev/{name}")
    os.mkdir(root + "/dev/pts")
    mount("devpts", root + "/dev/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=0620")
    os.mkdir(root + "/dev/shm")
    mount("tmpfs", root + "/dev/shm", "tmpfs", 0, f"mode=1777,size={64 * MIB}")


def inside(root, path):
    """The place of a container's path. Symbolic links, such as /var/run, lead to places in its own root."""
    place = root
    for name in filter(None, path.split("/")):
        ahead = f"{place}/{name}"
        link = os.readlink(ahead) if os.path.islink(ahead) else None
        if link is None:
            place = ahead
        else:
            place = inside(root, link) if link.startswith("/") else os.path.normpath(f"{place}/{link}")
    return place


def make_root(wanted):
    """Makes the container's root: a private, writable layer over the machine's own files, which are the image."""
    layer = wanted["layer"]
    mount("tmpfs", layer, "tmpfs", 0, "mode=755")
    for name in ("upper", "work", "root"):
        os.mkdir(f"{layer}/{name}")
    root = layer + "/root"
    mount("overlay", root, "overlay", 0, f"lowerdir=/,upperdir={layer}/upper,workdir={layer}/work")
    for path in wanted["passable"]:
        os.chmod(root + path, os.stat(root + path).st_mode | 0o111)
    mount("proc", root + "/proc", "proc")
    mount("sysfs", root + "/sys", "sysfs", MS_RDONLY)
    mount("tmpfs", root + "/run", "tmpfs", 0, "mode=755")
    os.mkdir(root + "/run/sshd")  # as in images with an sshd
    make_devices(root)
    for path, (text, mode) in wanted["files"].items():
        if os.path.islink(root + path):
            os.unlink(root + path)
        put(root, path, text.encode(), mode)
    for source, path, read_only in wanted["mounts"]:
        target = inside(root, path)
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        elif not os.path.exists(target):
            put(root, target.removeprefix(root))
        mount(source, target, None, MS_BIND)
        if read_only:
            mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY)
    if wanted["read_only_root"]:
        mount(None, root, None, MS_BIND | MS_REMOUNT | MS_RDONLY)
    os.chroot(root)
    os.chdir(wanted["directory"])


def drop_rights(wanted):
    for capability in wanted["dropped"]:
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    if wanted["no_new_privileges"]:
        check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if wanted["seccomp"]:
        seccomp.install()
    if wanted["group"] is not None or wanted["user"] is not None:
        os.setgroups(wanted["groups"])
        os.setgid(wanted["group"] if wanted["group"] is not None else 0)
    if wanted["user"] is not None:
        os.setuid(wanted["user"])


def run_container(wanted, parents_pipe):
    """In the child: becomes process 1 of the container."""
    die_with_helper(parents_pipe)
    os.setsid()
    for number in list(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}):
        try:
            signal.signal(number, signal.SIG_DFL)
        except OSError:
            pass
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    log = os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, parents_pipe)
    os.closerange(parents_pipe + 1, 256)
    for path in wanted["cgroups"]:
        with open(path, "w") as file:
            file.write("0")  # the writing process
    unshare(NEWNS)
    make_root(wanted)
    drop_rights(wanted)
    die_with_helper(parents_pipe)  # again: setuid() has cleared the setting
    try:
        os.execvpe(wanted["argv"][0], wanted["argv"], wanted["env"])
    except OSError as error:
        print(f"cannot start {wanted['argv'][0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(126 if isinstance(error, PermissionError) else 127)


def start(wanted, children):
    read, write = os.pipe()
    helper = os.fork()
    # unshare(NEWPID) affects future children and works only once, so a helper process does it for each container.
    if helper == 0:
        try:
            die_with_parent(os.getppid())
            os.close(read)
            unshare(NEWPID)
            childs_end, own_end = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    os.close(own_end)
                    run_container(wanted, childs_end)
                except BaseException as error:
                    os.write(2, f"sandbox: {error}\n".encode())
                    os._exit(125)
            os.write(write, str(child).encode())
            os.close(write)
            os.closerange(0, 3)
            _, status = os.waitpid(child, 0)
            os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
        except BaseException:
            os._exit(125)
    os.close(write)
    pid = int(os.read(read, 16) or 0)
    os.close(read)
    children[os.pidfd_open(helper)] = (helper, wanted["name"])
    send(started=wanted["name"], pid=pid)


def end_all(children):
    """Returns when no process of the pod is left. Containers die with their helpers, and this process inherits them."""
    for helper, _ in children.values():
        os.kill(helper, signal.SIGKILL)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def main():
    die_with_parent(int(sys.argv[1]))
    check(LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    unshare(NEWNS | NEWUTS | NEWIPC | NEWNET)
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    children, rest = {}, b""
    send(pid=os.getpid())
    while True:
        ready, _, _ = select.select([0, *children], [], [])
        for one in ready:
            if one in children:
                helper, name = children.pop(one)
                _, status = os.waitpid(helper, 0)
                os.close(one)
                send(exited=name, code=os.waitstatus_to_exitcode(status))
                continue
            more = os.read(0, 1 << 16)
            if not more:
                return end_all(children)
            rest += more
            *lines, rest = rest.split(b"\n")
            for line in lines:
                word = json.loads(line)
                if "hostname" in word:
                    name = word["hostname"].encode()
                    check(LIBC.sethostname(name, len(name)))
                if "volume" in word:  # of all containers of this pod, in this mount namespace
                    os.makedirs(word["volume"], exist_ok=True)
                    mount("tmpfs", word["volume"], "tmpfs", 0, f"mode=1777,size={word['bytes']}")
                    for path, (text, mode) in word["files"].items():
                        put(word["volume"], "/" + path, text.encode(), mode)
                        if word["group"] is not None:  # fsGroup owns the files and may read them
                            os.chown(f"{word['volume']}/{path}", 0, word["group"])
                            os.chmod(f"{word['volume']}/{path}", mode | mode >> 3 & 0o070)
                if "run" in word:
                    done = subprocess.run(word["run"], input=word.get("input", ""), capture_output=True, text=True)
                    send(ran=word["run"][0], code=done.returncode, output=done.stdout + done.stderr)
                if "start" in word:
                    start(word["start"], children)


if __name__ == "__main__":
    main()
