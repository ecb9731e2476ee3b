"""SyncBatchNorm: batch normalisation over the batches of all ranks together, on any device."""

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from ..basics import Sum, is_initialized, size
from . import ops


class SyncBatchNorm(_BatchNorm):
    """Replaces torch.nn.BatchNorm1d, 2d and 3d: mean and variance are those of all ranks' samples.

    Batches may differ in size between ranks, and may be empty. The gradients of weight and bias are those of this
    rank's samples, as for every parameter: DistributedOptimizer combines them. ValueError if there are fewer than two
    samples per channel.
    """

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, **options):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **options)

    def _check_input_dim(self, input):
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def _factor(self):
        """The weight of this batch in the running statistics."""
        if self.momentum is not None:
            return self.momentum
        return 1.0 / float(self.num_batches_tracked)

    def forward(self, input):
        """Normalises `input`, of shape (samples, features, ...). In training the statistics are those of all ranks."""
        if not self.training or not is_initialized() or size() == 1:
            return self._forward_alone(input)
        self._check_input_dim(input)
        if input.shape[1] != self.num_features:
            raise ValueError(f"expected {self.num_features} channels, got {input.shape[1]}: {list(input.shape)}")
        output, mean, variance, count = _Normalise.apply(input, self.weight, self.bias, self.eps)
        if self.track_running_stats:
            self._track(mean, variance, count)
        return output

    def _forward_alone(self, input):
        """As torch.nn.BatchNorm."""
        self._check_input_dim(input)
        uses_batch = self.training or self.running_mean is None
        factor = 0.0
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
            factor = self._factor()
        tracked = not self.training or self.track_running_stats
        return F.batch_norm(input, self.running_mean if tracked else None, self.running_var if tracked else None,
                            self.weight, self.bias, uses_batch, factor, self.eps)  # fmt: skip

    @torch.no_grad()
    def _track(self, mean, variance, count):
        self.num_batches_tracked.add_(1)
        factor = self.momentum
        if factor is None:  # stays on the device, so that the host need not wait
            factor = self.num_batches_tracked.to(self.running_mean.dtype).reciprocal()
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)


def _wide(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def _by_channel(vector, like):
    return vector.view(1, -1, *[1] * (like.dim() - 2))


def _statistics_of_all(x):
    """Mean, variance and number of samples of each channel over all ranks.

    They are combined from the statistics of each rank, so that no subtraction of large sums loses precision.
    """
    dimensions = [0, *range(2, x.dim())]
    channels, mine = x.shape[1], x.numel() // x.shape[1]
    if mine:
        variance, mean = torch.var_mean(x, dimensions, correction=0)
    else:
        variance = mean = x.new_zeros(channels)
    own = torch.cat([mean, variance, x.new_full((1,), mine)]).unsqueeze(0)
    # One name for all layers of a width: agreement on a repeated name is cheap.
    name = f"sync_batch_norm.{channels}.{x.dtype}"
    gathered = ops.synchronize(ops.allgather_async(own, name))
    means, variances, counts = gathered[:, :channels], gathered[:, channels:-1], gathered[:, -1:]
    count = counts.sum()
    # Only a rank with few samples reads the sum, because reading it from a device makes the host wait.
    if mine < 2 and count < 2:
        raise ValueError("SyncBatchNorm expects more than 1 value per channel over all ranks when training")
    mean = (means * counts).sum(0) / count
    variance = ((variances + (means - mean) ** 2) * counts).sum(0) / count
    return mean, variance, count


def _normal(x, mean, scale):
    return (x - _by_channel(mean, x)) * _by_channel(scale, x)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, eps):
        x = input.to(_wide(input.dtype))
        mean, variance, count = _statistics_of_all(x)
        scale = torch.rsqrt(variance + eps)
        output = _normal(x, mean, scale)
        if weight is not None:
            output = output * _by_channel(weight.to(x.dtype), x) + _by_channel(bias.to(x.dtype), x)
        # Saves the input, which others keep too, and not the wider values computed from it.
        ctx.save_for_backward(input, weight, mean, scale, count)
        ctx.mark_non_differentiable(mean, variance, count)
        return output.to(input.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, *_):
        input, weight, mean, scale, count = ctx.saved_tensors
        normal = _normal(input.to(scale.dtype), mean, scale)
        dtype = gradient.dtype
        gradient = gradient.to(normal.dtype)
        dimensions = [0, *range(2, gradient.dim())]
        for_bias = gradient.sum(dimensions)
        for_weight = (gradient * normal).sum(dimensions)
        input_gradient = None
        if ctx.needs_input_grad[0]:
            sums = torch.stack([for_bias, for_weight])
            name = f"sync_batch_norm.{normal.shape[1]}.{normal.dtype}.grad"
            means = ops.allreduce_(sums.clone(), name=name, op=Sum) / count
            if weight is not None:
                scale = scale * weight.to(scale.dtype)
            input_gradient = gradient - _by_channel(means[0], normal) - normal * _by_channel(means[1], normal)
            input_gradient = (input_gradient * _by_channel(scale, normal)).to(dtype)
        if weight is None:
            return input_gradient, None, None, None
        return input_gradient, for_weight.to(weight.dtype), for_bias.to(weight.dtype), None
