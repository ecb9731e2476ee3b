"""Pod Security admission: what the levels `baseline` and `restricted` of a namespace refuse in a pod.

The rules are those of the Pod Security Standards of Kubernetes 1.34, for Linux.
"""

LEVELS = ("privileged", "baseline", "restricted")
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
_BASELINE_CAPABILITIES = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip
_SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}  # fmt: skip


def violations(spec, level):
    """What the level refuses in the spec of a pod: one line each, as the API server names them."""
    if level not in LEVELS:
        raise ValueError(f"level {level!r} is none of {', '.join(LEVELS)}")
    if level == "privileged":
        return []
    found = list(_of_baseline(spec))
    return found + list(_of_restricted(spec)) if level == "restricted" else found


def _containers(spec):
    return [one for key in ("initContainers", "containers", "ephemeralContainers") for one in spec.get(key, [])]


def _security(one):
    return one.get("securityContext") or {}


def _of_baseline(spec):
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield f"host namespaces ({key}=true)"
    for volume in spec.get("volumes", []):
        if "hostPath" in volume:
            yield f'hostPath volumes (volume "{volume["name"]}")'
    for sysctl in _security(spec).get("sysctls", []):
        if sysctl["name"] not in _SYSCTLS:
            yield f"forbidden sysctls ({sysctl['name']})"
    for one in _containers(spec):
        where, security = f'(container "{one["name"]}")', _security(one)
        if security.get("privileged"):
            yield f"privileged {where}"
        added = set(security.get("capabilities", {}).get("add", []))
        if added - _BASELINE_CAPABILITIES:
            yield f"non-default capabilities {where} adds {', '.join(sorted(added - _BASELINE_CAPABILITIES))}"
        if any(port.get("hostPort") for port in one.get("ports", [])):
            yield f"hostPort {where}"
        if security.get("procMount", "Default") != "Default":
            yield f"procMount {where}"
    for one in [spec, *_containers(spec)]:
        if _security(one).get("seccompProfile", {}).get("type") == "Unconfined":
            yield "seccompProfile (type=Unconfined)"


def _of_restricted(spec):
    pod = _security(spec)
    for volume in spec.get("volumes", []):
        if set(volume) - {"name"} - _VOLUMES - {"hostPath"}:
            yield f'restricted volume types (volume "{volume["name"]}")'
    for one in _containers(spec):
        where, security = f'(container "{one["name"]}")', _security(one)
        if security.get("allowPrivilegeEscalation") is not False:
            yield f"allowPrivilegeEscalation != false {where}"
        capabilities = security.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", []):
            yield f'unrestricted capabilities {where} must set drop=["ALL"]'
        if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
            yield f"unrestricted capabilities {where} adds more than NET_BIND_SERVICE"
        if security.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
            yield f"runAsNonRoot != true {where}"
        if security.get("runAsUser", pod.get("runAsUser")) == 0:
            yield f"runAsUser=0 {where}"
        profile = security.get("seccompProfile", pod.get("seccompProfile", {})).get("type")
        if profile not in ("RuntimeDefault", "Localhost"):
            yield f"seccompProfile {where} must be RuntimeDefault or Localhost"
