"""train_ray: the program of a RayJob. farandole.integrations.ray joins Ray Train's workers into one world,
and each run has its own key.

RANKS=2 python train_ray.py        # on the cluster that RAY_ADDRESS names, or on a new one of this machine
"""

import os


def train(config):
    import farandole
    import numpy as np

    farandole.init()  # in the function that Ray runs, and never when a module is imported
    total = farandole.allreduce(np.array([1.0 + farandole.rank()]), name="ranks", op=farandole.SUM)
    if farandole.rank() == 0:
        print(f"ray: {farandole.size()} ranks, their numbers, from 1 on, add up to {total[0]:g}", flush=True)


def main():
    import ray
    from farandole.integrations.ray import FarandoleTrainer
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    if not ray.is_initialized():
        ray.init()
    ranks = int(os.environ.get("RANKS", "2"))
    gpus = ray.cluster_resources().get("GPU", 0) >= ranks
    FarandoleTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=ranks, use_gpu=gpus),
        # A rank that is lost ends the others within seconds; Ray starts all again, from their last checkpoint.
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    ).fit()
    print("ray: all ranks are through", flush=True)


if __name__ == "__main__":
    main()
