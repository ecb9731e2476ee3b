"""Fills PLACEHOLDER_NAME in files of examples/. It prints nothing while a placeholder has no value or an invalid one.

    python examples/eks/render.py --set REGION=us-west-2 --set AZ_1=us-west-2a ... FILE > cluster.yaml
    kubectl kustomize ... | python examples/eks/render.py --partition aws-cn --set ACCOUNT=111122223333 - | kubectl
    apply ...

A value can also come from the environment variable of the same name. With --partition aws-cn the names of ARNs, of ECR
and of other endpoints become those of China.
"""

import argparse
import os
import re
import sys

PLACEHOLDER = re.compile(r"PLACEHOLDER_([A-Z][A-Z0-9_]*)")

# The pattern of a value, by the end of its name (without a number).
FORMS = {
    "VPC_ID": (r"vpc-[0-9a-f]{8,17}", "vpc-0123456789abcdef0"),
    "SUBNET_ID": (r"subnet-[0-9a-f]{8,17}", "subnet-0123456789abcdef0"),
    "SECURITY_GROUP_ID": (r"sg-[0-9a-f]{8,17}", "sg-0123456789abcdef0"),
    "RESERVATION_ID": (r"cr-[0-9a-f]{8,17}", "cr-0123456789abcdef0"),
    "FSX_ID": (r"fs-[0-9a-f]{8,17}", "fs-0123456789abcdef0"),
    "PLACEMENT_GROUP": (r"[\w.-]{1,255}", "farandole"),
    "EFS_ID": (r"fs-[0-9a-f]{8,17}", "fs-0123456789abcdef0"),
    "FSX_MOUNT": (r"[a-z0-9]{1,8}", "abcdefgh"),
    "ACCOUNT": (r"\d{12}", "111122223333"),
    "REGION": (r"[a-z]{2}(-[a-z]+)+-\d", "us-west-2"),
    "AZ": (r"[a-z]{2}(-[a-z]+)+-\d[a-z]", "us-west-2a"),
    "ZONE": (r"[a-z]{2}(-[a-z]+)+-\d[a-z]", "us-west-2a"),
    "CLUSTER": (r"[A-Za-z0-9][A-Za-z0-9-]{0,99}", "farandole"),
    "NODE_ROLE": (r"[\w+=,.@-]{1,64}", "KarpenterNodeRole-farandole"),
}


def form_of(name):
    plain = re.sub(r"_\d+\Z", "", name)
    return FORMS.get(plain, (r"\S+", "a value"))


def faults(text, values):
    """Yields one line for each placeholder without a value, and for each value that does not match its pattern."""
    wanted = list(dict.fromkeys(PLACEHOLDER.findall(text)))
    for name in wanted:
        pattern, example = form_of(name)
        if name not in values:
            yield f"PLACEHOLDER_{name} is not filled: --set {name}={example}"
        elif not re.fullmatch(pattern, values[name]):
            yield f"{name} '{values[name]}' does not look like {example}"
    for name in wanted:
        other = f"{name[:-2]}_1"
        if name.endswith("_2") and values.get(name) and values.get(name) == values.get(other):
            yield f"{name} and {other} are both '{values[name]}': the control plane needs two"
    zone, region = values.get("AZ_1"), values.get("REGION")
    if zone and region and "AZ_1" in wanted and "REGION" in wanted and not zone.startswith(region):
        yield f"AZ_1 '{zone}' is not in REGION '{region}'"


def to_partition(text, partition):
    """Changes ARNs and endpoints to those of another partition."""
    if partition == "aws-cn":
        text = text.replace("arn:aws:", "arn:aws-cn:")
        text = re.sub(r"([\w.-]+)\.amazonaws\.com(?!\.cn)\b", r"\1.amazonaws.com.cn", text)
    return text


def render(text, values, partition="aws"):
    found = list(faults(text, values))
    region = values.get("REGION", "")
    if region and region.startswith("cn-") != (partition == "aws-cn"):
        right = "aws-cn" if region.startswith("cn-") else "aws"
        found.append(f"REGION '{region}' is in the partition {right}: give --partition {right}")
    if found:
        raise ValueError("\n".join(found))
    return to_partition(PLACEHOLDER.sub(lambda match: values[match.group(1)], text), partition)


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="- for standard input")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--partition", choices=["aws", "aws-cn"], default="aws")
    options = parser.parse_args(words)
    try:
        text = sys.stdin.read() if options.file == "-" else open(options.file).read()
    except OSError as error:
        print(f"render: {options.file} cannot be read: {error.strerror}", file=sys.stderr)
        return 1
    values = {name: os.environ[name] for name in PLACEHOLDER.findall(text) if os.environ.get(name)}
    for word in options.set:
        name, sign, value = word.partition("=")
        if not sign:
            parser.error(f"--set '{word}' is not NAME=VALUE")
        values[name.removeprefix("PLACEHOLDER_")] = value
    try:
        sys.stdout.write(render(text, values, options.partition))
    except ValueError as error:
        print(
            f"render: {options.file}:\n" + "\n".join(f"  {line}" for line in str(error).splitlines()), file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
