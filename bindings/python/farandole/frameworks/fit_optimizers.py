"""What DistributedOptimizer and its module have in common for Keras 2 and 3."""


def layers_of(local_layers, layer_class):
    """The argument `local_layers`, a layer or a list of layers, as a list. ValueError if an element is no layer."""
    layers = [local_layers] if isinstance(local_layers, layer_class) else list(local_layers or ())
    for layer in layers:
        if not isinstance(layer, layer_class):
            raise ValueError(f"local_layers: {layer!r} is not a layer of Keras")
    return layers


def load(load_model, filepath, custom_optimizers, custom_objects, distribute):
    """A model, loaded by Keras's `load_model`. Its optimizer, if it has one, becomes `distribute(optimizer)`."""
    objects = {one.__name__: one for one in custom_optimizers or ()}
    model = load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = distribute(model.optimizer)
    return model
