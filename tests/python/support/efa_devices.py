"""EFA devices for jobs of tests: a tree in place of /sys, and a provider of libfabric that has these devices."""

import os
import subprocess

from launch import ROOT

PROVIDERS = os.path.join(ROOT, "build", "providers", "efa_over_tcp")
LEAST_OLD = os.path.join(ROOT, "build", "providers", "fake_ofi_old.so")
COUNTERS = ("tx_bytes", "rx_bytes", "rdma_read_bytes", "rdma_write_bytes")


def make_tree(root, devices, model=None, nodes=()):
    """Makes a tree with so many EFA devices, of an instance type `model`, on these NUMA nodes."""
    (root / "class" / "infiniband").mkdir(parents=True)
    for number in range(devices):
        device = root / "class" / "infiniband" / f"efa_{number}"
        (device / "device").mkdir(parents=True)
        (device / "device" / "vendor").write_text("0x1d0f\n")
        if nodes:
            (device / "device" / "numa_node").write_text(f"{nodes[number]}\n")
        (device / "ports" / "1" / "hw_counters").mkdir(parents=True)
        for counter in COUNTERS:
            (device / "ports" / "1" / "hw_counters" / counter).write_text("0\n")
    if model:
        (root / "devices" / "virtual" / "dmi" / "id").mkdir(parents=True)
        (root / "devices" / "virtual" / "dmi" / "id" / "product_name").write_text(model + "\n")
    return root


def count(root, device, counter, value):
    (root / "class" / "infiniband" / device / "ports" / "1" / "hw_counters" / counter).write_text(f"{value}\n")


def efa(root=None, devices=1, **more):
    """The variables of a rank whose host has so many devices."""
    tree = {} if root is None else {"FARANDOLE_SYSFS_ROOT": str(root)}
    return {"FI_PROVIDER_PATH": PROVIDERS, "FAKE_EFA_DEVICES": str(devices), **tree, **more}


def make_nccl_plugin(folder, name="libnccl-net-ofi.so", symbol="ncclNetPlugin_v9"):
    """A library that NCCL would take as its network plugin. Returns its path."""
    source = folder / "plugin.c"
    source.write_text(f"int {symbol};\n")
    path = folder / name
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    return path
