"""Writes a bill of materials of the image in which it runs: Debian's packages and those of this Python, as SPDX 2.3.

    python sbom.py NAME >farandole.spdx.json        # NAME: of the package that the image is for

The same image gives the same text: the time is that of SOURCE_DATE_EPOCH, and nothing is random.
"""

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from urllib.parse import quote

FORMAT = "${Package}\\t${Version}\\t${Architecture}\\t${source:Package}\\n"


def debian_packages():
    """Yields (name, version, purl) of all packages that dpkg has installed."""
    done = subprocess.run(["dpkg-query", "-W", f"-f=${{db:Status-Status}}\t{FORMAT}"], capture_output=True, text=True)
    with open("/etc/os-release") as file:
        system = dict(line.rstrip().split("=", 1) for line in file if "=" in line)
    for line in done.stdout.splitlines():
        status, name, version, architecture, source = line.split("\t")
        if status == "installed":
            place = f"pkg:deb/{system['ID']}/{name}@{quote(version)}?arch={architecture}&upstream={source}"
            yield name, version, place


def python_packages():
    for one in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower()
        yield one.metadata["Name"], one.version, f"pkg:pypi/{name}@{quote(one.version)}"


def document(name, version, packages):
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "0"))))
    entries = [
        {
            "SPDXID": "SPDXRef-Package-" + hashlib.sha256(place.encode()).hexdigest()[:16],
            "name": package,
            "versionInfo": number,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "externalRefs": [
                {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": place}
            ],
        }
        for package, number, place in sorted(set(packages), key=lambda one: one[2])
    ]
    content = hashlib.sha256(json.dumps(entries).encode()).hexdigest()
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{name}-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{version}-{content}",
        "creationInfo": {"created": made, "creators": ["Tool: farandole-sbom"]},
        "packages": entries,
        "relationships": [
            {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": one["SPDXID"]}
            for one in entries
        ],
    }


if __name__ == "__main__":
    packages = [*debian_packages(), *python_packages()]
    json.dump(document(sys.argv[1], importlib.metadata.version(sys.argv[1]), packages), sys.stdout, indent=1)
    print()
