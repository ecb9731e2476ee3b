"""An S3 and STS server for tests (moto), on loopback or as a pod. Once closed it demands credentials as a real one
does."""

import json
import logging
import sys
import urllib.request
from pathlib import Path

import boto3
import builders
from moto.server import ThreadedMotoServer
from moto.sts import urls
from moto.sts.responses import TokenResponse

PROGRAM = str(Path(sys.executable).parent / "moto_server")
ROLES = "arn:aws:iam::123456789012:role/"
# Clients do not query the machine's metadata for credentials, and they try twice to reach a store that does not answer.
QUIET = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_DEFAULT_REGION": "us-east-1", "AWS_MAX_ATTEMPTS": "2"}
OPEN = {"AWS_ACCESS_KEY_ID": "anybody", "AWS_SECRET_ACCESS_KEY": "anything"}


class TokenOffice(TokenResponse):
    """Accepts the unsigned request of a pod that exchanges its service account's token for a key; moto refuses it."""

    TOKEN = "the token that this cluster gave to the pod"

    def _authenticate_and_authorize_normal_action(self, resource="*"):
        if self._get_action() != "AssumeRoleWithWebIdentity":
            super()._authenticate_and_authorize_normal_action(resource)
        elif self._get_param("WebIdentityToken") != self.TOKEN:
            raise PermissionError("no token of this cluster")


class S3Server:
    """A server on loopback in a thread of this process. `variables` are what a program needs to use it."""

    def __init__(self):
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        urls.url_paths = {path: TokenOffice.dispatch for path in urls.url_paths}
        self.server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self.server.start()
        host, port = self.server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self.variables = {**QUIET, **OPEN, "AWS_ENDPOINT_URL": self.url}

    def client(self, kind):
        return boto3.client(
            kind,
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="anybody",
            aws_secret_access_key="anything",
        )

    def make_bucket(self, name):
        self.client("s3").create_bucket(Bucket=name)

    def names(self, bucket):
        return sorted(one["Key"] for one in self.client("s3").list_objects_v2(Bucket=bucket).get("Contents", []))

    def make_role(self, name, *statements):
        """Creates a role for pods with these policy statements."""
        trust = {"Version": "2012-10-17", "Statement": []}
        policy = {"Version": "2012-10-17", "Statement": list(statements)}
        iam = self.client("iam")
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))
        iam.put_role_policy(RoleName=name, PolicyName="all", PolicyDocument=json.dumps(policy))

    def demand_credentials(self, closed=True):
        """From now on only requests with a role are accepted, and only those that the role allows."""
        count = b"0" if closed else b"inf"
        ask = urllib.request.Request(f"{self.url}/moto-api/reset-auth", count, {"Content-Type": "text/plain"})
        urllib.request.urlopen(ask, timeout=10).read()

    def end(self):
        self.demand_credentials(False)
        self.server.stop()


def as_pod(port=443):
    """A pod called s3 and its Service: http://s3:PORT."""
    command = ["python", PROGRAM, "-H", "0.0.0.0", "-p", str(port)]
    spec = builders.pod_spec(command)
    del spec["containers"][0]["env"]  # the pod belongs to no job
    pod = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "s3", "labels": {"app": "s3"}}, "spec": spec}
    return [builders.service("s3", {"app": "s3"}), pod]
