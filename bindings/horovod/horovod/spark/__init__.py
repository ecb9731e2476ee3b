"""Not offered by this version."""

from .._alone import not_offered

raise not_offered(
    "horovod.spark", "start ranks with `farandole run`, Ray (horovod.ray), Slurm, mpirun or on Kubernetes"
)
