"""Hosts whose ephemeral ports are all in use. Each check runs in a network of its own."""

import os
import re
import socket
import subprocess
import sys

import farandole
import numpy
import pytest
from launch import FARANDOLE, SUPPORT
from limits import allowed

PORTS = range(40000, 40004)
RENDEZVOUS = 29500


def _use_all_ports():
    """Returns sockets that hold them."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as limits:
        limits.write(f"{PORTS[0]} {PORTS[-1]}")
    holders = [socket.socket() for _ in PORTS]
    for holder, port in zip(holders, PORTS):
        holder.bind(("0.0.0.0", port))
    return holders


def connect():
    with socket.create_server(("127.0.0.1", RENDEZVOUS)):
        listen()


def listen():
    holders = _use_all_ports()
    try:
        farandole.init()
    except farandole.Error as error:
        print(error.text)
    del holders


def _output_of(check, rank, *arguments):
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    given = {
        "FARANDOLE_RANK": str(rank),
        "FARANDOLE_SIZE": "2",
        "FARANDOLE_RENDEZVOUS": f"tcp://127.0.0.1:{RENDEZVOUS}",
        "FARANDOLE_JOB_KEY": "a key of sixteen characters",
        # A rank without a port waits for one until this limit.
        "FARANDOLE_START_TIMEOUT_S": str(allowed(2)),
        "PYTHONPATH": SUPPORT,
    }
    command = ["unshare", "--net", *as_root, sys.executable, __file__, check, *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, **given},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=allowed(60),
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_rank_that_has_no_port_to_connect_from_says_so():
    text = _output_of("connect", rank=1)
    assert "rank 1" in text and "no free port to connect from (net.ipv4.ip_local_port_range)" in text, text


def test_a_rank_that_has_no_port_to_listen_at_says_so():
    text = _output_of("listen", rank=0)
    assert "no port of this host is free: widen net.ipv4.ip_local_port_range" in text, text


def start():
    try:
        farandole.init()
        farandole.allreduce(numpy.ones(4, numpy.float32))
    except farandole.Error as error:
        print("FAILED", error.code, error.culprit_rank, error.text)


def job(*settings):
    holders = _use_all_ports()
    variables = {**os.environ, "FARANDOLE_TRANSPORT": "tcp", **dict(one.split("=") for one in settings)}
    for name in ("RANK", "SIZE", "RENDEZVOUS"):
        del variables[f"FARANDOLE_{name}"]
    subprocess.run([FARANDOLE, "run", "-np", "4", "--", sys.executable, __file__, "start"], env=variables, check=True)
    del holders


# The launcher and its ranks need no port to find each other.
def test_ranks_that_have_no_port_to_listen_at_lack_a_resource():
    text = _output_of("job", rank=0)
    failures = re.findall(r"^\[(\d)\] FAILED RESOURCE (-?\d) (.*)", text, re.MULTILINE)
    assert len(failures) == 4, text
    for rank, culprit, sentence in failures:
        assert "no port of this host is free: widen net.ipv4.ip_local_port_range" in sentence, text
        assert culprit != rank and (culprit == "-1" or sentence.startswith(f"rank {culprit} (")), text


# They listen at ports that are not among those to connect from. In a mesh a rank calls the lower ones, so rank 0 lacks
# nothing; at first use any rank may be the first that calls.
@pytest.mark.parametrize("mesh_ranks", [16, 1])
def test_ranks_that_have_no_port_to_connect_from_lack_a_resource(mesh_ranks):
    settings = [f"FARANDOLE_TCP_MESH_RANKS={mesh_ranks}", "FARANDOLE_PORT_BASE=41000", "FARANDOLE_LOST_AFTER_S=1"]
    text = _output_of("job", 0, *settings)
    failures = re.findall(r"^\[(\d)\] FAILED RESOURCE (-?\d) (.*)", text, re.MULTILINE)
    assert len(failures) == 4, text
    of_mesh = {"1", "2", "3"}
    for rank, culprit, sentence in failures:
        assert "no free port to connect from (net.ipv4.ip_local_port_range)" in sentence, text
        own = rank if culprit == "-1" else culprit
        assert re.match(rf"rank {own} \(|tcp: rank {own} \(", sentence), text
        assert mesh_ranks == 1 or own in of_mesh, text


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
