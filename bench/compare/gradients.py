"""Gradients: a model that computes nothing and has the gradients of a real one, so that a step shows what reducing
costs."""

import ranks
import torch


class _Given(torch.autograd.Function):
    """A loss of zero whose gradient for a parameter is a tensor that has been there all the time."""

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
    """A step with reduction, and the same in the context `without()`, if that is known:
    what is between them is what reducing costs."""

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
