"""What `farandole doctor` finds about Python: releases of other packages that matter, without importing them."""

import re
import shutil
import sys
from importlib import metadata

from ..launcher import is_own_python

# For each framework the packages of which one contains it, and the releases with which the tests of this version have
# been run: the oldest and the newest.
_FRAMEWORKS = {
    "PyTorch": (("torch",), (2, 9), (2, 15)),
    "TensorFlow": (("tensorflow", "tensorflow-cpu"), (2, 12), (2, 21)),
    "Keras": (("keras",), (2, 12), (3, 15)),
    "JAX": (("jax",), (0, 5), (0, 10)),
}


def was_tried(framework, version):
    """Whether the tests have been run with that release, such as "2.13.0+cpu" of "PyTorch"."""
    _, oldest, newest = _FRAMEWORKS[framework]
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return bool(numbers) and oldest <= tuple(map(int, numbers.groups())) <= newest


def tried_range(framework):
    """The range of releases as text: "2.9 to 2.15"."""
    return " to ".join(".".join(map(str, one)) for one in _FRAMEWORKS[framework][1:])


def findings():
    """(verdict, what, text, remedy) of each check that has something to report; a remedy may be empty."""
    found = [check_framework(one) for one in _FRAMEWORKS]
    found += [check_accelerate(), check_horovod(), check_python()]
    return [one for one in found if one is not None]


def check_framework(framework):
    version = next(filter(None, map(_version, _FRAMEWORKS[framework][0])), None)
    if version is None:
        return None
    tried = tried_range(framework)
    if was_tried(framework, version):
        return "good", framework, f"{version}, within the tried range {tried}", ""
    remedy = "if it fails, install a release of that range"
    return "note", framework, f"{version} has not been tried with this version, only {tried}", remedy


def check_accelerate():
    version = _version("accelerate")
    if version is None:
        return None
    text = f'{version} has a list of backends of its own, and refuses TrainingArguments(ddp_backend="farandole")'
    return (
        "note",
        "Accelerate",
        text,
        'call torch.distributed.init_process_group("farandole") before, without ddp_backend',
    )


def check_horovod():
    version = _version("horovod")
    if version is None or _version("farandole-horovod") is None:
        return None
    text = f"Horovod {version} and farandole-horovod are both installed, and their files share the folder horovod"
    remedy = "pip uninstall -y horovod farandole-horovod && pip install farandole-horovod"
    return "bad", "horovod", text, remedy


def check_python():
    """Ranks that are started as `python train.py` use the first Python of PATH."""
    path = shutil.which("python") or shutil.which("python3")
    if path is None or is_own_python(path):
        return None
    text = f"ranks that are started as `python` run {path}, but this command belongs to {sys.executable}"
    return "warning", "Python", text, "activate the environment of this command, or install farandole there too"


def _version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def as_text(found):
    """The findings as the program reads them: the unit separator ends a field, the record separator a finding."""
    return "".join("".join(f"{field}\x1f" for field in one) + "\x1e" for one in found)
