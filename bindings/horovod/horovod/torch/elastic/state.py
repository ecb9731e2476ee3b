"""TorchState, and how its values are handled."""

from farandole.torch.elastic.state import (  # noqa: F401
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    TorchState,
    get_handler_registry,
    set_handler_registry,
)
