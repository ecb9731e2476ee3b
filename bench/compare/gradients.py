"""Gradients: a model that computes nothing and has the gradients of a real one, so that a step times the reduction
alone."""

import ranks
import torch


class _Given(torch.autograd.Function):
    """A loss of zero whose gradient for each parameter is an existing tensor."""

    @staticmethod
    def forward(ctx, parameter, gradient):
        ctx.gradient = gradient
        return torch.zeros(())

    @staticmethod
    def backward(ctx, loss_gradient):
        return ctx.gradient, None


class Model(torch.nn.Module):
    def __init__(self, counts):
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.zeros(count) for count in counts)
        self.given = [torch.ones(count) for count in counts]

    def forward(self):
        return sum(_Given.apply(part, gradient) for part, gradient in zip(self.parts, self.given))


def measure_step(library, name, model, without, seconds, finish=lambda: None):
    """Measures a step with reduction and, if `without` is given, the same step in the context `without()`. Their
    difference is the time of the reduction."""

    def steps(calls):
        for _ in range(calls):
            model().backward()
            finish()

    def alone(calls):
        with without():
            for _ in range(calls):
                model().backward()

    def forget():
        model.zero_grad(set_to_none=True)

    for _ in range(3):
        steps(1)
        forget()
    ranks.report(library, f"{name}, step", ranks.sample(library, seconds, steps, forget))
    if without is not None:
        ranks.report(library, f"{name}, step without reduction", ranks.sample(library, seconds, alone, forget))
