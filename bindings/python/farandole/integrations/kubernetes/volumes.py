"""Volumes of a pod: shared memory, existing or new claims, ConfigMaps."""

from . import values
from .document import Item, Map
from .errors import WrongCombination


def _split_mount(word, option, parts):
    found = word.split(":")
    if (
        not parts[0] <= len(found) <= parts[1]
        or not found[1].startswith("/")
        or (option == "--pvc" and found[2:] not in ([], ["ro"]))
    ):
        form = {"--pvc": "CLAIM:/PATH[:ro]", "--new-pvc": "CLAIM:/PATH:SIZE", "--config-map": "NAME:/PATH"}[option]
        raise WrongCombination(f"{option} '{word}' is not {form}")
    fault = values.fault_of_name(_volume(found[0]))
    if fault:
        raise WrongCombination(f"{option} {word}: '{found[0]}' {fault}")
    return found


def _volume(name):
    """The name of the volume of a claim or ConfigMap, whose own name may have dots."""
    return name.replace(".", "-")


def claims(o):
    """The claims to create, as (name, size)."""
    made = [_split_mount(word, "--new-pvc", (3, 3)) for word in o.new_pvc]
    for name, _, size in made:
        if not values.quantity(size):
            raise WrongCombination(f"--new-pvc {name}: '{size}' is no size such as 100Gi")
        if values.fault_of_size(size):
            raise WrongCombination(f"--new-pvc {name}: {size} {values.fault_of_size(size)}")
    return [(name, size) for name, _, size in made]


def volumes(o):
    """(volumes, mounts)"""
    made = [
        Item(
            name="dshm",
            emptyDir=Map(medium="Memory", sizeLimit=o.shm),
            why="Kubernetes limits /dev/shm to 64 MiB, too little for ranks that share memory and for a DataLoader. "
            f"It is counted as memory of the container. {o.why.get('shm', '')}".rstrip(),
        )
    ]
    mounts = [Item(name="dshm", mountPath="/dev/shm")]
    if o.read_only_root:
        made.append(Item(name="tmp", emptyDir=Map()))
        mounts.append(Item(name="tmp", mountPath="/tmp"))
    existing = [_split_mount(word, "--pvc", (2, 3)) for word in o.pvc]
    new = [_split_mount(word, "--new-pvc", (3, 3))[:2] for word in o.new_pvc]
    claim_of, config_of = {}, {}  # by the name of a volume
    for claim, path, *read_only in existing + new:
        name = _volume(claim)
        if claim_of.get(name) != claim:
            made.append(Item(name=name, persistentVolumeClaim=Map(claimName=claim)))
        claim_of[name] = claim
        mounts.append(Item(name=name, mountPath=path, **({"readOnly": True} if read_only else {})))
    for word in o.config_map:
        config, path = _split_mount(word, "--config-map", (2, 2))
        name = _volume(config)
        if name in claim_of:
            raise WrongCombination(f"--config-map {word}: a claim is mounted as '{name}' already; rename one of them")
        if config_of.get(name) != config:
            made.append(Item(name=name, configMap=Map(name=config)))
        config_of[name] = config
        mounts.append(Item(name=name, mountPath=path, readOnly=True))
    return made, mounts
