"""Dynamic resource allocation: claims of GPUs by a DeviceClass, and of channels of NVLink that spans nodes."""

from .document import Item, Map
from .names import metadata

GPUS, CHANNEL = "gpus", "channel"


def claims(o):
    """(name in a pod, name of its ResourceClaimTemplate) of each claim."""
    made = [(GPUS, f"{o.name}-gpus")] if o.device_class else []
    return made + ([(CHANNEL, f"{o.name}-channel")] if o.compute_domain else [])


def claimed(o):
    """The entry of a container's resources; empty without claims."""
    return {"claims": [Item(name=name) for name, _ in claims(o)]} if claims(o) else {}


def add_claims(o, spec):
    """Adds to a pod the claims that its containers use."""
    if any("claims" in box["resources"] for box in spec["containers"]):
        spec["resourceClaims"] = [Item(name=name, resourceClaimTemplateName=template) for name, template in claims(o)]
        spec.note("resourceClaims", "Each pod gets devices of its own from the templates of these names.")


def objects(o):
    """The ResourceClaimTemplate of the GPUs, and the ComputeDomain, which makes the template of the channels itself."""
    made = []
    if o.device_class:
        exactly = Map(deviceClassName=o.device_class, allocationMode="ExactCount", count=o.gpus)
        spec = Map(spec=Map(devices=Map(requests=[Item(name=GPUS, exactly=exactly)])))
        about = metadata(o, f"{o.name}-gpus")
        made.append(Item(apiVersion="resource.k8s.io/v1", kind="ResourceClaimTemplate", metadata=about, spec=spec))
    if o.compute_domain:
        spec = Map(numNodes=o.min_nodes, channel=Map(resourceClaimTemplate=Map(name=f"{o.name}-channel")))
        made.append(
            Item(
                apiVersion="resource.nvidia.com/v1beta1",
                kind="ComputeDomain",
                metadata=metadata(o),
                spec=spec,
                why="NVIDIA's DRA driver connects the memory of GPUs on the nodes of these pods (IMEX), so that NCCL "
                "uses NVLink between them.",
            )
        )
    return made
