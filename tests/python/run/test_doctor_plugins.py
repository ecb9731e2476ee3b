"""`farandole doctor` opens the network plugin that NCCL would open. The plugins are compiled here."""

import efa_devices
from test_doctor import findings


def test_a_network_plugin_of_nccl_is_found_as_nccl_finds_it(tmp_path):
    host = {"FARANDOLE_SYSFS_ROOT": str(efa_devices.make_tree(tmp_path, 1))}
    path = efa_devices.make_nccl_plugin(tmp_path)
    for given in ("ofi", str(path), "nothing,ofi"):
        found = findings({**host, "LD_LIBRARY_PATH": str(tmp_path), "NCCL_NET_PLUGIN": given})["NCCL's plugin"]
        assert found["verdict"] == "good" and found["text"] == str(path), (given, found)
    path.rename(tmp_path / "libnccl-net.so")
    found = findings({**host, "LD_LIBRARY_PATH": str(tmp_path)})["NCCL's plugin"]
    assert found["verdict"] == "good" and found["text"] == str(tmp_path / "libnccl-net.so"), found
    efa_devices.make_nccl_plugin(tmp_path, "libnccl-net.so", "something_else")
    wrong = findings({**host, "LD_LIBRARY_PATH": str(tmp_path)})["NCCL's plugin"]
    assert wrong["verdict"] == "warning" and "has no interface of a plugin" in wrong["text"], wrong
