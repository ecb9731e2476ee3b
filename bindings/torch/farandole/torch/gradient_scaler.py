"""GradScaler with a DistributedOptimizer: a scaler reads gradients only after they have been reduced.

A scaler reads gradients in unscale_, in the check of fused optimizers and in step. None of these calls a method of the
optimizer before. Therefore these methods of GradScaler and of all its subclasses call `_before_scaler` of optimizers
that have one. Other optimizers are not affected.
"""

import functools

import torch

_METHODS = ("unscale_", "_unscale_grads_", "_check_inf_per_device", "step")


def _reducing_first(method):
    @functools.wraps(method)
    def reduce_first(self, optimizer, *arguments, **options):
        before = getattr(optimizer, "_before_scaler", None)
        if before is not None and self.is_enabled():
            before()
        return method(self, optimizer, *arguments, **options)

    reduce_first.reduces_first = True
    return reduce_first


def _prepare_class(kind):
    """Wraps the methods that a class itself defines. Its inherited methods are wrapped already."""
    for name in _METHODS:
        method = vars(kind).get(name)
        if callable(method) and not hasattr(method, "reduces_first"):
            setattr(kind, name, _reducing_first(method))


def _prepare_with_subclasses(kind):
    _prepare_class(kind)
    for subclass in kind.__subclasses__():
        _prepare_with_subclasses(subclass)


def prepare_scalers():
    """Prepares all scaler classes that exist and those that are defined later."""
    scaler = torch.amp.GradScaler
    _prepare_with_subclasses(scaler)
    if "__init_subclass__" not in vars(scaler):

        def prepare(cls, **options):
            super(scaler, cls).__init_subclass__(**options)
            _prepare_class(cls)

        scaler.__init_subclass__ = classmethod(prepare)
