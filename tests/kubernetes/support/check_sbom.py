"""Compares the bill of materials of the image in which it runs with dpkg's packages and those of this Python."""

import importlib.metadata
import json
import re
import subprocess

with open("/usr/share/sbom/farandole.spdx.json") as file:
    LISTED = {one["externalRefs"][0]["referenceLocator"].split("?")[0] for one in json.load(file)["packages"]}
done = subprocess.run(["dpkg-query", "-W", "-f=${Package}\n"], capture_output=True, text=True, check=True)
present = {("deb", name) for name in done.stdout.split()}
present |= {
    ("pypi", re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower()) for one in importlib.metadata.distributions()
}
names = {(one.split("/")[0].removeprefix("pkg:"), one.split("/")[-1].split("@")[0]) for one in LISTED}
print(f"sbom: {len(names)} packages; missing: {sorted(present - names)}; not in the image: {sorted(names - present)}")
