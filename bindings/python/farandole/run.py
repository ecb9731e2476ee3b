"""farandole.run: calls a function on several ranks of this host and returns their results."""

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

from . import launcher, objects
from .hosts import HostsError, local_slots


class RankError(RuntimeError):
    """A rank failed. `rank` is its number (-1 if unknown), and the text ends with its traceback.

    If the rank raised an exception, this is an instance of that exception's class too, and `__cause__` is the
    exception.
    """

    rank = -1
    text = ""

    def __str__(self):
        return self.text


def run(func, args=(), kwargs=None, num_proc=1, min_num_proc=None, max_num_proc=None, slots=None, reset_limit=None,
        cooldown_range=None, hosts=None, hostfile=None, host_discovery_script=None, start_timeout=None, ssh_port=None,
        ssh_identity_file=None, disable_cache=None, output_filename=None, verbose=None, use_gloo=None, use_mpi=None,
        mpi_args=None, network_interface=None, network_interfaces=None, executable=None, np=None, min_np=None,
        max_np=None):  # fmt: skip
    """Calls func(*args, **kwargs) on `np` ranks of this host and returns the list of their results, in rank order.

    Each rank is a process. The function, its arguments and its results are pickled (by cloudpickle if it is installed)
    through files that only this user can read. RankError if a rank fails; the other ranks are ended. ValueError if the
    function cannot be pickled or `hosts` names other hosts.

    `np`, `num_proc`: the number of ranks.
    `min_np`, `max_np`, `reset_limit`: an elastic job, whose function elastic.run has wrapped; see docs/elastic.md.
    `hosts`, `hostfile`: "localhost:4" and the like, which limit the number of ranks.
    `start_timeout`: seconds in which all ranks must arrive in init().
    `output_filename`: a folder for the ranks' output.
    `network_interfaces`: the network interfaces to use.
    `executable`: the Python interpreter of the ranks.
    `verbose`: prints the launcher's command line.

    ssh_*, use_*, mpi_args, disable_cache, slots and cooldown_range are accepted and ignored: there is one host and no
    ssh, MPI or Gloo.
    """
    if host_discovery_script is not None:
        raise ValueError("host_discovery_script: one host does not change; give min_np and max_np")
    count = _count(num_proc if np is None else np, hosts, hostfile)
    folder = tempfile.mkdtemp(prefix="farandole-run-")  # mode 0700
    try:
        _write_task(folder, func, tuple(args), dict(kwargs or {}))
        command = [
            launcher.program(),
            "run",
            "--standalone",
            "-np",
            str(count),
            "--report",
            os.path.join(folder, "report"),
        ]
        for flag, value in (("--min-np", _first(min_np, min_num_proc)), ("--max-np", _first(max_np, max_num_proc)),
                            ("--reset-limit", reset_limit), ("--output-filename", output_filename)):  # fmt: skip
            if value is not None:
                command += [flag, str(value)]
        command += ["--", executable or sys.executable, "-m", "farandole.run_rank", folder]
        if verbose:
            print(f"farandole.run: {' '.join(command)}", file=sys.stderr, flush=True)
        variables = dict(os.environ)
        if start_timeout is not None:
            variables["FARANDOLE_START_TIMEOUT_S"] = str(start_timeout)
        interfaces = _first(network_interfaces, network_interface)
        if interfaces:
            variables["FARANDOLE_INTERFACES"] = interfaces if isinstance(interfaces, str) else ",".join(interfaces)
        code = _call(command, variables)
        outcomes = _outcomes(folder)
        if code != 0:
            raise _failure(folder, count, code, outcomes)
        values = [one for one in outcomes if "value" in one]  # other ranks of an elastic job may have failed
        return [one["value"] for one in sorted(values, key=lambda one: one["rank"])]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _first(*values):
    return next((value for value in values if value is not None), None)


def _count(count, hosts, hostfile):
    try:
        capacity = local_slots(hosts, hostfile)
    except HostsError as error:
        raise ValueError(f"farandole.run starts ranks on this host only: {error}") from None
    if int(count) < 1:
        raise ValueError(f"np={count}: at least one rank is needed")
    if capacity is not None and int(count) > capacity:
        raise ValueError(f"np={count}, but the given hosts have room for {capacity}")
    return int(count)


def _write_task(folder, func, args, kwargs):
    pickler = objects.pickler()
    if pickler is pickle and getattr(func, "__module__", None) == "__main__":
        raise ValueError(
            f"{getattr(func, '__qualname__', func)} belongs to the main program, which other processes cannot import; "
            "pip install cloudpickle, or move it to a module"
        )
    try:
        task = objects.dumps((func, args, kwargs))
    except Exception as error:
        raise ValueError(f"the function or its arguments cannot be pickled: {error}") from error
    with objects.private_file(os.path.join(folder, "task")) as file:
        pickle.dump([entry for entry in sys.path if entry], file)  # first: unpickling the task may need it
        file.write(task)


def _call(command, variables):
    """Runs the launcher and returns its exit code. The launcher does not outlive this call."""
    sys.stdout.flush()  # before the output of the ranks
    with subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL) as process:
        try:
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


# ---- Outcomes of the ranks ------------------------------------------------------------------------------------------


def _outcomes(folder):
    """The outcome that each rank has stored: {rank, process, value} or {rank, process, error, traceback, raised_at}."""
    outcomes = []
    for name in os.listdir(folder):
        if name.startswith("outcome."):
            with open(os.path.join(folder, name), "rb") as file:
                outcomes.append(pickle.load(file))
    return outcomes


def _report(folder):
    try:
        with open(os.path.join(folder, "report")) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def _failure(folder, count, code, outcomes):
    report = _report(folder)
    raised = sorted((one for one in outcomes if "traceback" in one), key=lambda one: one["raised_at"])
    # A rank without an outcome was killed. The exceptions of other ranks are consequences of that.
    if report and not any(one["process"] == report["process"] for one in outcomes):
        return rank_error(report["rank"], f"rank {report['rank']} of {count} on {socket.gethostname()} (process "
                      f"{report['process']}) ended with {report['ending']}; its last lines are above")  # fmt: skip
    if raised:
        first = raised[0]
        return rank_error(first["rank"], f"rank {first['rank']} of {count} raised "
                                         f"{first['summary']}\n\n{first['traceback']}",
                      first["error"])  # fmt: skip
    return rank_error(-1, f"the launcher ended with exit code {code}; its messages are above")


def rank_error(rank, text, cause=None):
    """A RankError that is also an instance of the cause's class, if such a class can be created."""
    error = None
    if isinstance(cause, Exception):
        try:
            kind = type(cause)
            joined = type(kind.__name__, (RankError, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
            error = joined.__new__(
                joined
            )  # without __init__, which may need arguments; the attributes are those of the cause
            vars(error).update(vars(cause))
        except Exception:
            error = None  # a class that cannot be combined with RankError
    error = error if error is not None else RankError()
    error.args = (text,)
    error.rank, error.text, error.__cause__ = rank, text, cause
    return error
