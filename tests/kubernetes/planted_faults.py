"""Plants faults, one for each row that says run or simulated, and checks that the row's test fails.

    python tests/kubernetes/planted_faults.py [ROW...]     # all of them take about twelve minutes

Each fault changes one text in a copy of the sources, and the test runs there. manifests/test_rows.py checks in each run
of the tests that every such row has a fault here, that its text is in the file, and that its test is one of the row's.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATOR = "bindings/python/farandole/integrations/kubernetes"
PACKAGES = {"bindings/python/farandole": "farandole", "bindings/keras/farandole/keras": "farandole/keras"}
TRAINING = "programs/test_training.py::"
CHECKPOINTS = "programs/test_checkpoints.py::"
HPA = "pods/test_hpa.py::"
ELASTIC = "pods/test_elastic_pods.py::"


@dataclass(frozen=True)
class Fault:
    what: str
    file: str
    old: str
    new: str
    test: str  # in tests/kubernetes; its name has the row's number


def _variable_is_not_read(name, test):
    start = "import os as _os\n"
    file = "bindings/python/farandole/__init__.py"
    return Fault(f"{name} is not read", file, start, f'{start}_os.environ.pop("{name}", None)\n', test)


FAULTS = {
    "P6": Fault("all pods of a Deployment lead", f"{GENERATOR}/plain_kinds.py",
                'workers = _role(o, "worker", o.max_nodes - 1)',
                'workers = _role(o, "worker", o.max_nodes - 1, ["--node-rank", "0"])',
                ELASTIC + "test_p6_h13_k11_pods_of_a_deployment_are_numbered_by_arrival_and_scaled_during_training"),
    "P7": Fault("S3 is read without the role", "bindings/python/farandole/stores.py", "url_to_fs(uri)",
                "url_to_fs(uri, anon=True)",
                "programs/test_checkpoints.py::test_p7_k6_c10_a_service_accounts_role_is_enough_and_is_needed"),
    "H4": Fault("every rank prints", "examples/kubernetes/train_keras.py",
                "    if hvd.rank() == 0:\n", "    if True:\n",
                "programs/test_keras.py::test_h4_the_training_script_trains_resumes_and_one_rank_prints"),
    "H8": Fault("logs are not in the order of ranks", f"{GENERATOR}/live/pod_state.py",
                'return (trial, first, int(labels[key]), "")', 'return (trial, first, -int(labels[key]), "")',
                "operators/test_logs_and_status.py::test_h8_logs_come_in_order_of_rank_each_behind_its_number"),
    "H9": Fault("a file is written in its place", "bindings/python/farandole/stores.py",
                'temporary = f"{target}.{socket.gethostname()}.{os.getpid()}.tmp"', "temporary = target",
                TRAINING + "test_h9_a_checkpoint_is_the_old_one_or_the_new_one_even_after_sigkill"),
    "H10": _variable_is_not_read("FARANDOLE_ALGORITHM",
                                 TRAINING + "test_h10_the_algorithm_can_be_chosen_and_is_shown"),
    "H11": _variable_is_not_read("FARANDOLE_DEVICE_COLLECTIVES",
                                 "programs/test_gpus.py::test_h11_a_variable_of_the_job_chooses_nccl_or_the_host"),
    "H12": Fault("the launcher's pod gives its location to all ranks", f"{GENERATOR}/location/manifest.py",
                 'or (o.locations == "zone" and o.kind == "mpijob")', "",
                 "pods/test_jobs_examples.py::test_h12_ranks_under_mpirun_have_the_zone_of_their_own_pod"),
    "H13": Fault("the HPA's target is never reached", "examples/kubernetes/k8s/hpa.yaml", "averageValue: 800m",
                 "averageValue: 100m",
                 HPA + "test_h13_k11_in_pods_the_hpa_reads_the_ranks_metrics_and_its_deployment_settles"),
    "H15": Fault("the option turns nothing on", f"{GENERATOR}/pods.py",
                 'name="FARANDOLE_RUN_JSON_LOGS", value="1"', 'name="FARANDOLE_RUN_JSON_LOGS", value="0"',
                 "pods/test_jobs.py::test_h15_every_line_of_a_pod_is_json_with_its_rank"),
    "H16": Fault("the job waits for the success of all pods", f"{GENERATOR}/plain_kinds.py",
                 "Item(succeededCount=1)", "Item(succeededCount=3)",
                 "pods/test_nodes_and_names.py::test_h16_an_elastic_job_trains_with_the_pods_that_find_a_node_"
                 "and_completes_without_the_others"),
    "H18": Fault("every rank prints and saves", "examples/kubernetes/train_torch.py",
                 "        if hvd.rank() == 0:\n",
                 "        if True:\n",
                 TRAINING + "test_h4_h18_the_horovod_calls_train_with_torch_and_one_rank_prints_and_saves"),
    "E15": Fault("a server that does not answer is no error", f"{GENERATOR}/live/command.py", "UNREACHABLE = 69",
                 "UNREACHABLE = 0",
                 "operators/test_logs_and_status.py::test_e15_without_kubectl_or_without_a_server_the_error_names_it"),
    "K1": Fault("the operator starts one rank a pod", f"{GENERATOR}/operators.py", "nprocPerNode=o.nproc",
                'nprocPerNode="1"',
                ELASTIC + "test_k1_an_elastic_pytorchjob_survives_a_killed_worker_and_accepts_its_successor"),
    "K2": Fault("one worker too many", f"{GENERATOR}/operators.py",
                '_replicas(o, o.max_nodes - 1, "tensorflow"', '_replicas(o, o.max_nodes, "tensorflow"',
                "pods/test_shipped_manifests.py::test_a_manifest_as_it_is_trains_as_one_world[k2-tfjob --nnodes 2]"),
    "K3": Fault("mpiexec reads another file of hosts", "examples/kubernetes/kubeflow/mpijob-mpich.yaml",
                "- /etc/mpi/hostfile\n", "- /etc/mpi/hosts\n",
                "pods/test_jobs_examples.py::test_k3_the_shipped_manifest_for_mpich_trains_as_it_is"),
    "K4": Fault("ranks reduce something else", "examples/kubernetes/ray/train_ray.py", "op=farandole.SUM",
                "op=farandole.MAX", "operators/test_ray.py::test_k4_the_program_of_the_rayjob_trains"),
    "K6": Fault("the writer names parts that are not yet written", "bindings/python/farandole/checkpoint.py",
                '        store.write(f"{folder}/{_MANIFEST}"', '            store.write(f"{folder}/{_MANIFEST}"',
                CHECKPOINTS + "test_k6_h9_a_process_that_is_killed_while_it_writes_leaves_the_old_one"),
    "K7": Fault("the ranks use TCP beside the devices", f"{GENERATOR}/pods.py", 'value="shm,efa"', 'value="shm,tcp"',
                "pods/test_jobs.py::test_k7_pods_with_efa_devices_use_them_between_each_other"),
    "K11": Fault("the HPA adds and removes many pods", "examples/kubernetes/k8s/hpa.yaml", "          value: 1\n",
                 "          value: 9\n",
                 HPA + "test_h13_k11_the_number_of_pods_settles_where_the_efficiency_is_that_of_the_target"),
    "K12": Fault("a preempted pod has succeeded", "examples/kubernetes/train_numpy.py",
                 "PREEMPTED = 143", "PREEMPTED = 0",
                 TRAINING + "test_k12_k15_sigterm_saves_the_step_and_ends_with_143_never_0"),
    "K15": Fault("training begins again at step 0", "examples/kubernetes/train_numpy.py",
                 'return int(state["step"]), state["weights"]', 'return 0, state["weights"]',
                 TRAINING + "test_k15_training_that_was_cut_in_two_ends_with_the_same_bits"),
    "K17": Fault("a group is all ranks", "examples/03_groups.py", ', name="part", group=mine)', ', name="part")',
                 TRAINING + "test_k17_groups_of_ranks_work_beside_each_other"),
    "K19": Fault("late pods must succeed too", f"{GENERATOR}/plain_kinds.py",
                 "Map(rules=[Item(succeededCount=1)])", "None",
                 ELASTIC + "test_h16_k19_a_job_whose_pods_come_after_its_end_is_complete"),
    "K20": Fault("the last failure is taken for the first", f"{GENERATOR}/live/pod_state.py",
                 "    return exit_code(pod) in (202, 203), is_ended,", "    return not is_ended,",
                 "operators/test_logs_and_status.py::test_k20_a_failed_job_has_the_code_of_the_pod_that_failed_first"),
    "C5": Fault("the metric is read from another pod", "examples/kubernetes/kubeflow/katib/job.yaml",
                'batch.kubernetes.io/job-completion-index: "0"', 'batch.kubernetes.io/job-completion-index: "1"',
                "operators/test_katib.py::test_c5_a_trial_is_made_and_run_and_its_metric_is_read_from_one_pod"),
    "C6": Fault("the step does not wait for its job", "examples/kubernetes/pipelines/train_pipeline.py",
                'farandole kubernetes logs "$name" --follow', "true",
                "operators/test_pipelines.py::test_c6_the_step_fails_as_its_job_fails_and_is_tried_again"),
}  # fmt: skip


def _link_or_copy(source, target):
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def copy_of_the_sources(folder):
    """(the root of a copy of the sources, the folder of a copy of the installed package)"""
    import farandole

    root, package = folder / "sources", folder / "package"
    ignored = shutil.ignore_patterns("__pycache__", "unit", "integration", "fuzz", "native")
    for name in ("tests", "examples", "docs", "bindings", "include"):
        shutil.copytree(ROOT / name, root / name, symlinks=True, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", root)
    (root / "build").symlink_to(ROOT / "build")
    shutil.copytree(Path(farandole.__file__).parent, package / "farandole", copy_function=_link_or_copy, ignore=ignored)
    return root, package


def plant(fault, root, package):
    """Changes the file in the sources, and in the package if it is a part of it."""
    places = [root / fault.file]
    for folder, name in PACKAGES.items():
        if fault.file.startswith(folder + "/"):
            places.append(package / name / fault.file[len(folder) + 1 :])
    for place in places:
        text = place.read_text()
        assert fault.old in text, f"{place} does not contain {fault.old!r}"
        place.unlink()  # a link to the original
        place.write_text(text.replace(fault.old, fault.new))


def run_test(fault, root, package):
    """(what became of the fault: seen, NOT SEEN, or NOT RUN if the test could not begin; the last line of pytest)"""
    environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.setdefault("FARANDOLE_SCHEMA_DIR", str(ROOT.parent / "shared" / "schemas"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/kubernetes/{fault.test}"],
        cwd=root, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-200:]
    if re.search(r"\d failed", last):
        return "seen", last
    return "NOT SEEN" if re.search(r"\d passed", last) else "NOT RUN", last


def check_what_tests_need():
    sys.path.insert(0, str(ROOT / "tests" / "kubernetes" / "support"))
    try:
        import manifest_checks  # noqa: F401
    except ImportError as error:
        sys.exit(f"planted_faults.py: {error}")


def main():
    check_what_tests_need()
    rows, became = sys.argv[1:] or list(FAULTS), []
    for row in rows:
        with tempfile.TemporaryDirectory(prefix="planted-") as folder:
            root, package = copy_of_the_sources(Path(folder))
            plant(FAULTS[row], root, package)
            word, last = run_test(FAULTS[row], root, package)
        print(f"{row:<4} {word}: {FAULTS[row].what} ({last})", flush=True)
        became.append(word)
    counts = [became.count(word) for word in ("seen", "NOT SEEN", "NOT RUN")]
    print("planted faults: {}, seen {}, not seen {}, not run {}".format(len(rows), *counts))
    return 0 if counts[0] == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
