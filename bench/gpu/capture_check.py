"""Captures an allreduce into a CUDA graph, replays the graph, and compares the sums. Measures a replay.

    python capture_check.py [--ranks N]

The exit code is 3 without a GPU, and 4 if a sum is wrong or a rank fails.
"""

import argparse
import os
import sys
import tempfile
import time

from ddp_bench import NONE, WRONG, run_ranks, share_devices, what_is_missing

REPLAYS = 50


def rank_main(rank, options, folder, key):
    os.environ.update(FARANDOLE_RANK=str(rank), FARANDOLE_SIZE=str(options.ranks), FARANDOLE_JOB_KEY=key,
                      FARANDOLE_RENDEZVOUS=f"file://{folder}/rendezvous")  # fmt: skip
    import farandole
    import farandole.torch as hvd
    import torch

    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    hvd.init()
    communicator = farandole.Communicator()
    for count in (2, 1 << 18, 1 << 24):
        source = torch.empty(count, device=device)
        total = torch.empty(count, device=device)
        # The first collective of a communicator connects the ranks and cannot be captured.
        communicator.allreduce(source, out=total)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            communicator.allreduce(source, out=total)
        for replay in range(3):
            source.fill_(rank + 1 + replay)
            graph.replay()
            expected = sum(other + 1 + replay for other in range(options.ranks))
            if not bool((total == expected).all()):
                print(f"capture_check: the sum of {count} floats in replay {replay} is not {expected}", file=sys.stderr)
                sys.exit(WRONG)
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize(device)
        if rank == 0:
            each = (time.perf_counter() - begin) / REPLAYS * 1e6
            print(f"{options.ranks} ranks, a graph with an allreduce of {4 * count} bytes: {each:.1f} us a replay")
        del graph  # before its communicator ends
    communicator.free()
    hvd.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    options.device, options.without_peer = "cuda", True
    missing = what_is_missing(options)
    if missing:
        print(f"capture_check: there is nothing to check: {missing}", file=sys.stderr)
        return NONE
    import torch

    if options.ranks > torch.cuda.device_count():
        share_devices(options)
    with tempfile.TemporaryDirectory() as folder:
        return run_ranks("capture_check", rank_main, options, folder)


if __name__ == "__main__":
    sys.exit(main())
