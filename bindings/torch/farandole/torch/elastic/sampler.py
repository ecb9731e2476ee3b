"""ElasticSampler: divides the unprocessed samples of an epoch among the ranks, whatever their number."""

import math

import torch

from ... import basics


class ElasticSampler(torch.utils.data.Sampler):
    """A sampler that continues an epoch after a loss or a change of the ranks.

    Pass it to a DataLoader, record each batch, and make it part of a TorchState. After a restore the epoch continues
    with the samples that were not processed at the last commit. All ranks get the same number of samples: if the rest
    does not divide evenly, its first samples are repeated.
    """

    def __init__(self, dataset, shuffle=True, seed=0):
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self._was_iterated = False  # since the last reset
        self.rank, self.num_replicas = 0, 1
        self.remaining_indices = []
        self.num_samples = self.total_size = 0
        self.reset()

    def set_epoch(self, epoch):
        """Begins an epoch, or continues the current one. It may be called before or after the loop over batches.

        If all samples of the current epoch were processed and the loop over them has run, the epoch begins again. After
        a restore the loop has not run yet: a call before it keeps the epoch, of which no samples are left.
        """
        if epoch != self.epoch or (self._was_iterated and self.processed_num >= len(self.dataset)):
            self.epoch = epoch
            self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx, batch_size):
        """Records that every rank has processed a batch of `batch_size` samples."""
        self.processed_num = min(self.processed_num + batch_size * self.num_replicas, len(self.dataset))

    def state_dict(self):
        """The epoch and the number of processed samples."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict):
        """Restores the result of state_dict()."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self):
        """Divides the unprocessed samples among the current ranks. The loop over them is expected to follow."""
        self._was_iterated = False
        if basics.is_initialized():
            self.rank, self.num_replicas = basics.rank(), basics.size()
        count = len(self.dataset)
        if self.shuffle:
            order = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed + self.epoch)).tolist()
        else:
            order = list(range(count))
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self):
        self._was_iterated = True
        indices = list(self.remaining_indices)
        while 0 < len(indices) < self.total_size:
            indices += indices[: self.total_size - len(indices)]
        return iter(indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self):
        return self.num_samples
