"""train_ray: what a RayJob runs. Ray Train starts the ranks and sets RANK and WORLD_SIZE after Python has started.

farandole reads them in init(), so it is called in the function that Ray runs, and never when a module is imported.
"""

import os


def train(config):
    import numpy as np

    import farandole

    farandole.init()
    total = farandole.allreduce(np.array([float(farandole.rank())]), name="ranks", op=farandole.SUM)
    if farandole.rank() == 0:
        print(f"ray: {farandole.size()} ranks, their numbers add up to {total[0]:g}", flush=True)
    farandole.shutdown()


def main():
    import ray
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init()
    ranks = int(os.environ.get("RANKS", "2"))
    gpus = ray.cluster_resources().get("GPU", 0) >= ranks
    TorchTrainer(train, scaling_config=ScalingConfig(num_workers=ranks, use_gpu=gpus)).fit()


if __name__ == "__main__":
    main()
