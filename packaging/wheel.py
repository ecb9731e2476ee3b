"""Writes one wheel for several versions of Python from a tree that `cmake --install --component wheel` has made.

The library, the program and the metrics plug-in do not depend on Python's version; `farandole/_native` is there once
for each version. The same inputs give the same bytes: entries are sorted and carry the time SOURCE_DATE_EPOCH.
"""

import argparse
import base64
import datetime
import hashlib
import json
import os
import pathlib
import re
import zipfile

import tomllib
from pyproject_metadata import StandardMetadata

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def version():
    """The version that the public header states, read as pyproject.toml says."""
    rule = PROJECT["tool"]["scikit-build"]["metadata"]["version"]
    found = re.search(rule["regex"], (ROOT / rule["input"]).read_text())
    return rule["result"].format(**found.groupdict())


def metadata(licenses):
    """Returns the text of METADATA."""
    known = StandardMetadata.from_pyproject(PROJECT, ROOT)
    known.dynamic = []
    known.version = version()
    message = str(known.as_rfc822())
    files = "".join(f"License-File: {name}\n" for name in sorted(licenses))
    head, separator, body = message.partition("\n\n")
    head = head.replace("Metadata-Version: 2.1", "Metadata-Version: 2.4")  # the first that has License-File
    return head + "\n" + files + separator[1:] + body


def components(prefix):
    """The third-party code inside, as (name, version, licence text): one for each file of build/.../licenses."""
    for folder in sorted((prefix / "licenses").iterdir()):
        yield folder.name, (folder / "version").read_text().strip(), (folder / "copyright").read_bytes()


def bill_of_materials(prefix, architecture):
    """Returns the list of the wheel's contents in the format CycloneDX. PEP 770 places it in the folder sboms."""
    parts = [
        {
            "type": "library",
            "name": name,
            "version": release,
            "bom-ref": f"{name}@{release}",
            "purl": f"pkg:{'pypi' if name in ('pybind11', 'ziglang') else 'deb/debian'}/{name}@{release}",
        }
        for name, release, _ in components(prefix)
    ]
    own = {"type": "library", "name": "farandole", "version": version(), "bom-ref": "farandole"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**own, "purl": f"pkg:pypi/farandole@{version()}?arch={architecture}"}},
        "components": parts,
        "dependencies": [{"ref": "farandole", "dependsOn": [part["bom-ref"] for part in parts]}],
    }


def collect(arguments):
    """All files of the wheel: name to (bytes, is executable)."""
    files = {}
    for path in sorted(arguments.tree.rglob("*")):
        if path.is_file():
            files[path.relative_to(arguments.tree).as_posix()] = (path.read_bytes(), os.access(path, os.X_OK))
    for package, folder in PROJECT["tool"]["scikit-build"]["wheel"]["packages"].items():
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                files[f"{package}/{path.relative_to(ROOT / folder).as_posix()}"] = (path.read_bytes(), False)
    return files


def describe(files, arguments, tags):
    """Adds the folder .dist-info, except for RECORD."""
    info = f"farandole-{version()}.dist-info"
    licenses = {"LICENSE": (ROOT / "LICENSE").read_bytes()}
    licenses |= {f"third-party/{name}.txt": text for name, _, text in components(arguments.prefix)}
    for name, text in licenses.items():
        files[f"{info}/licenses/{name}"] = (text, False)
    bill = json.dumps(bill_of_materials(arguments.prefix, arguments.architecture), indent=1, sort_keys=True)
    wheel = "Wheel-Version: 1.0\nGenerator: farandole packaging/wheel.py\nRoot-Is-Purelib: false\n"
    scripts = "".join(f"{name} = {place}\n" for name, place in sorted(PROJECT["project"]["scripts"].items()))
    points = f"[console_scripts]\n{scripts}"
    for group, entries in sorted(PROJECT["project"].get("entry-points", {}).items()):
        points += f"\n[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in sorted(entries.items()))
    texts = {
        "METADATA": metadata(licenses),
        "WHEEL": wheel + "".join(f"Tag: {tag}\n" for tag in tags),
        "entry_points.txt": points,
        f"sboms/{arguments.architecture}.cdx.json": bill + "\n",
    }
    for name, text in texts.items():
        files[f"{info}/{name}"] = (text.encode(), False)
    return info


def record(files, info):
    """The text of RECORD: hash and size of each file."""

    def line(name, data):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(data)}\n"

    return "".join(line(name, data) for name, (data, _) in sorted(files.items())) + f"{info}/RECORD,,\n"


def write(target, files):
    epoch = max(int(os.environ["SOURCE_DATE_EPOCH"]), 315532800)  # a ZIP file's times begin in 1980
    moment = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).timetuple()[:6]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (data, executable) in sorted(files.items(), key=lambda item: (".dist-info/" in item[0], item[0])):
            entry = zipfile.ZipInfo(name, moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            archive.writestr(entry, data)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=pathlib.Path, required=True, help="what cmake has installed")
    parser.add_argument("--prefix", type=pathlib.Path, required=True, help="the dependencies, with their licences")
    parser.add_argument("--architecture", required=True)
    parser.add_argument("--glibc", required=True, help="the oldest glibc, such as 2.28")
    parser.add_argument("--python", action="append", required=True, help="a version, such as 3.11; may be repeated")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    pythons = ["cp" + python.replace(".", "") for python in arguments.python]
    platform = f"manylinux_{arguments.glibc.replace('.', '_')}_{arguments.architecture}"
    files = collect(arguments)
    info = describe(files, arguments, [f"{python}-none-{platform}" for python in pythons])
    files[f"{info}/RECORD"] = (record(files, info).encode(), False)
    arguments.out.mkdir(parents=True, exist_ok=True)
    target = arguments.out / f"farandole-{version()}-{'.'.join(pythons)}-none-{platform}.whl"
    write(target, files)
    print(target)


if __name__ == "__main__":
    main()
