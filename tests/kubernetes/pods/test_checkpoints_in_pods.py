"""Tests of Jobs that save checkpoints to S3: pods with a service account's role, a NetworkPolicy, and an S3 server."""

import re

import podsim
import pytest
from farandole.integrations.kubernetes import generate
from manifest_checks import KUBERNETES

pytest.importorskip("s3fs", reason="needs s3fs and moto: bash tests/kubernetes/setup.sh")
import s3_server

TOKEN = "/eks.amazonaws.com/serviceaccount/token"
# The variables that EKS gives to pods of a service account with a role, and the address of the store.
ROLE = {"AWS_ROLE_ARN": s3_server.ROLES + "trainer", "AWS_WEB_IDENTITY_TOKEN_FILE": TOKEN, "AWS_REGION": "us-east-1"}
MAKE = "import urllib.request as u\nu.urlopen(u.Request('http://s3:443/my-bucket', method='PUT'), timeout=5)"


@pytest.fixture
def beside_s3(tmp_path):
    """beside_s3(manifest) returns a running PodSim in which the bucket exists and no pod of the manifest yet."""
    if podsim.why_not():
        pytest.skip(podsim.why_not())
    (tmp_path / "token").write_text(s3_server.TokenOffice.TOKEN)
    (tmp_path / "token").chmod(0o644)
    sims = []

    def begin(manifest, held):
        sim = podsim.PodSim(
            [*podsim.read(manifest), *s3_server.as_pod()],
            image={"/app/train_numpy.py": str(KUBERNETES / "train_numpy.py"), TOKEN: str(tmp_path / "token")},
            variables={
                **s3_server.QUIET,
                **ROLE,
                "AWS_ENDPOINT_URL": "http://s3:443",
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
            held=held,
        )
        sims.append(sim)
        sim.start()
        store = sim.pod("s3")
        sim.wait(60, lambda: store.main.pid and store.exec("python3", "-I", "-c", MAKE).returncode == 0)
        return sim

    yield begin
    for sim in sims:
        sim.end()


def test_k6_p7_k14_k19_jobs_save_to_s3_by_their_role_and_resume_where_a_killed_pod_had_saved(beside_s3):
    """Runs the example unchanged, and a job that would train for ever, whose first pod is killed."""
    long = "job --name long --nnodes 2 --service-account s3-trainer --network-policy --allow-egress 443 "
    long += "--max-restarts 4 --image any"
    program = "-- python /app/train_numpy.py --steps 10000000 --save-every 5 --checkpoint s3://my-bucket/long/state.npz"
    names = [f"{job}-{index}" for job in ("train-s3", "long") for index in range(2)]
    sim = beside_s3(
        (KUBERNETES / "k8s" / "job-s3.yaml").read_text() + "---\n" + generate(f"{long} {program}".split()), names
    )
    for name in names:
        sim.release(name)
    sim.wait(60, lambda: sim.result("train-s3") != "Running")
    assert sim.result("train-s3") == "Complete", sim.logs()
    printed = "".join(pod.output for pod in sim.pods if pod.hostname.startswith("train-s3"))
    assert re.findall(r"loss=([\d.]+)", printed) == ["0.082771"], printed
    first = sim.pod("long-0")
    sim.wait(30, lambda: '"PUT /my-bucket/long/state.npz' in sim.pod("s3").output)
    first.kill()
    sim.wait(60, lambda: sim.pod("long-0") is not first and "from step" in sim.pod("long-0").output)
    assert int(re.search(r"2 ranks, from step (\d+)", sim.pod("long-0").output)[1]) >= 5, sim.logs()
    asked = sim.pod("s3").output
    assert "PUT /my-bucket/train-s3/state.npz" in asked and "POST / HTTP" in asked  # the second: tokens became keys
