"""The table of horovodrun's options: the variable that each option sets, and its key in a configuration file."""

import collections

MIB = 1 << 20

# flags: their spellings. values: the number of words that follow. sets: ("variable", NAME), ("run", FLAG of
# `farandole run`), ("own", NAME of a setting of this command) or ("nothing", REASON). make: converts words to a value.
# key: "section.name" of a configuration file.
Option = collections.namedtuple("Option", "flags values sets make key")


def _option(flags, values, sets, make=None, key=None):
    return Option(tuple(flags.split()), values, sets, make, key)


def _variable(flags, name, make=None, key=None, values=1):
    return _option(flags, values, ("variable", name), make, key)


def _switch(flag, name, key=None, on="1", off="0"):
    """--flag and --no-flag."""
    return [_variable(f"--{flag}", name, lambda: on, key, 0), _variable(f"--no-{flag}", name, lambda: off, None, 0)]


def _nothing(flags, values, why, key=None):
    return _option(flags, values, ("nothing", why), None, key)


def _whole(text):
    return str(int(text))


def _number(text):
    return f"{float(text):g}"


def _bytes(text):
    return str(int(float(text) * MIB))


_NO_SSH = "no ssh is used"
_NO_MPI = "there is no MPI inside"

OPTIONS = [
    # ---- the job
    _option("-np --num-proc", 1, ("run", "-np"), _whole),
    _option("-H --hosts", 1, ("own", "hosts")),
    _option("-hostfile --hostfile", 1, ("own", "hostfile")),
    _option("--host-discovery-script", 1, ("own", "host_discovery_script")),
    _option("--config-file", 1, ("own", "config_file")),
    _option("-v --version", 0, ("own", "version")),
    _option("-h --help", 0, ("own", "help")),
    _option("-cb --check-build", 0, ("own", "check_build")),
    _option("--verbose", 0, ("own", "verbose")),
    _variable("--start-timeout", "HOROVOD_START_TIMEOUT", _number),
    _variable("--network-interfaces --network-interface", "HOROVOD_GLOO_IFACE"),
    _option("--output-filename", 1, ("run", "--output-filename")),
    _option("-prefix-timestamp --prefix-output-with-timestamp", 0, ("run", "--timestamps")),
    _nothing("--disable-cache", 0, _NO_SSH),
    _nothing("-p --ssh-port", 1, _NO_SSH),
    _nothing("-i --ssh-identity-file", 1, _NO_SSH),
    # ---- tuning
    _variable("--fusion-threshold-mb", "HOROVOD_FUSION_THRESHOLD", _bytes, "params.fusion_threshold_mb"),
    _variable("--cycle-time-ms", "HOROVOD_CYCLE_TIME", _number, "params.cycle_time_ms"),
    _variable("--cache-capacity", "HOROVOD_CACHE_CAPACITY", _whole, "params.cache_capacity"),
    *_switch("hierarchical-allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE", "params.hierarchical_allreduce"),
    *_switch("hierarchical-allgather", "HOROVOD_HIERARCHICAL_ALLGATHER", "params.hierarchical_allgather"),
    *_switch("torus-allreduce", "HOROVOD_TORUS_ALLREDUCE", "params.torus_allreduce"),
    *_switch("autotune", "HOROVOD_AUTOTUNE", "autotune.enabled"),
    _variable("--autotune-log-file", "HOROVOD_AUTOTUNE_LOG", None, "autotune.log_file"),
    _variable("--autotune-warmup-samples", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", _whole, "autotune.warmup_samples"),
    _variable("--autotune-steps-per-sample", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", _whole, "autotune.steps_per_sample"),
    _variable(
        "--autotune-bayes-opt-max-samples",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        _whole,
        "autotune.bayes_opt_max_samples",
    ),
    _variable(
        "--autotune-gaussian-process-noise",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        _number,
        "autotune.gaussian_process_noise",
    ),
    # ---- elastic jobs
    _option("--min-np --min-num-proc", 1, ("run", "--min-np"), _whole),
    _option("--max-np --max-num-proc", 1, ("run", "--max-np"), _whole),
    _option("--reset-limit", 1, ("run", "--reset-limit"), _whole),
    _option("--elastic-timeout", 1, ("run", "--elastic-timeout"), _number),
    _nothing("--slots-per-host", 1, "-np is the number of ranks of this host"),
    _nothing("--blacklist-cooldown-range", 2, "hosts are not blacklisted: a rank that dies is replaced by a new one"),
    # ---- watching
    _variable("--timeline-filename", "HOROVOD_TIMELINE", None, "timeline.filename"),
    *_switch("timeline-mark-cycles", "HOROVOD_TIMELINE_MARK_CYCLES", "timeline.mark_cycles"),
    *_switch("stall-check", "HOROVOD_STALL_CHECK_DISABLE", "stall_check.enabled", on="0", off="1"),
    _variable(
        "--stall-check-warning-time-seconds",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        _number,
        "stall_check.warning_time_seconds",
    ),
    _variable(
        "--stall-check-shutdown-time-seconds",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        _number,
        "stall_check.shutdown_time_seconds",
    ),
    _variable("--log-level", "HOROVOD_LOG_LEVEL", str.lower, "logging.level"),
    _variable("--log-with-timestamp", "HOROVOD_LOG_HIDE_TIME", lambda: "0", "logging.with_timestamp", 0),
    _variable(
        "--log-without-timestamp -log-hide-timestamp --log-hide-timestamp",
        "HOROVOD_LOG_HIDE_TIME",
        lambda: "1",
        None,
        0,
    ),
    # ---- libraries and controllers
    _variable(
        "--gloo-timeout-seconds", "HOROVOD_GLOO_TIMEOUT_SECONDS", _number, "library_options.gloo_timeout_seconds"
    ),
    _variable("--thread-affinity", "HOROVOD_THREAD_AFFINITY", None, "library_options.thread_affinity"),
    _variable("--num-nccl-streams", "HOROVOD_NUM_NCCL_STREAMS", _whole, "library_options.num_nccl_streams"),
    *_switch("mpi-threads-disable", "HOROVOD_MPI_THREADS_DISABLE", "library_options.mpi_threads_disable"),
    _nothing("--mpi-args", 1, _NO_MPI, "library_options.mpi_args"),
    _nothing("--binding-args", 1, _NO_MPI, "library_options.binding_args"),
    _nothing("--tcp", 0, "there is only TCP between hosts"),
    _nothing("--gloo", 0, "farandole has its own agreement", "controller"),
    _nothing("--mpi", 0, "farandole has its own agreement; ranks that mpirun starts are recognised too"),
    _nothing("--jsrun", 0, "ranks are started here; those that jsrun starts need FARANDOLE_RANK and its kin"),
]

BY_FLAG = {flag: option for option in OPTIONS for flag in option.flags}
BY_KEY = {option.key: option for option in OPTIONS if option.key}
