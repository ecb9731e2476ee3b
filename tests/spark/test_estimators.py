"""Estimators on a real Spark cluster: what they learn, what they store, and what they refuse."""

import os

import numpy
import pytest


def frame_of(spark, rows=64):
    """y = 2 * x0 - x1 + 0.5, exactly, with a vector and a scalar feature."""
    from pyspark.ml.linalg import Vectors

    dice = numpy.random.default_rng(1)
    x = dice.integers(-4, 5, size=(rows, 2)).astype(float)
    data = [(Vectors.dense(one), float(2 * one[0] - one[1] + 0.5), int(at % 4 == 0)) for at, one in enumerate(x)]
    return spark.createDataFrame(data, ["features", "label", "held_out"])


def linear():
    import torch

    torch.manual_seed(0)
    return torch.nn.Linear(2, 1)


def estimator(tmp_path, **more):
    import torch
    from farandole.spark.torch import TorchEstimator

    model = linear()
    given = dict(num_proc=2, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.05), store=str(tmp_path),
                 loss=lambda output, label: torch.nn.functional.mse_loss(output[:, 0], label),
                 metrics={"error": lambda output, label: (output[:, 0] - label).abs().mean()},
                 feature_cols=["features"], label_cols=["label"], batch_size=8, epochs=12, verbose=0)  # fmt: skip
    return TorchEstimator(**{**given, **more})


def test_a_torch_model_learns_and_predicts(spark, tmp_path):
    frame = frame_of(spark)
    model = estimator(tmp_path, validation="held_out").fit(frame)
    assert [entry["epoch"] for entry in model.history] == list(range(12))
    last = model.getHistory()[-1]
    assert set(last) == {"epoch", "train", "validation"} and set(last["train"]) == {"loss", "error"}
    assert last["validation"]["error"] < 0.05 < model.history[0]["validation"]["error"]
    assert numpy.allclose(model.getModel().weight.detach().numpy(), [[2, -1]], atol=0.05)
    rows = model.setOutputCols(["guess"]).transform(frame).collect()
    assert list(rows[0].asDict()) == ["features", "label", "held_out", "guess"] and len(rows) == 64
    weight, bias = model.model.weight.detach().numpy()[0], float(model.model.bias)
    for row in rows:
        assert row.guess == pytest.approx(float(row.features.toArray() @ weight + bias), abs=1e-5)
    # Nothing but the checkpoint is left in the store.
    assert os.listdir(tmp_path) == ["runs"] and os.listdir(tmp_path / "runs" / model.run_id) == ["checkpoint"]


def test_the_same_seed_gives_the_same_bits_and_a_run_continues(spark, tmp_path):
    frame = frame_of(spark).repartition(3, "label").cache()
    frame.count()
    one = estimator(tmp_path, run_id="one", epochs=6).fit(frame)
    other = estimator(tmp_path, run_id="other", epochs=6).fit(frame)
    assert one.history == other.history
    assert numpy.array_equal(one.model.weight.detach().numpy(), other.model.weight.detach().numpy())
    short = estimator(tmp_path, run_id="short", epochs=3).fit(frame)
    assert short.history == one.history[:3]
    continued = estimator(tmp_path, run_id="short", epochs=6).fit(frame)
    assert continued.history == one.history
    assert numpy.array_equal(continued.model.weight.detach().numpy(), one.model.weight.detach().numpy())
    again = estimator(tmp_path, run_id="short", epochs=6).fit(frame)  # nothing is left to do
    assert again.history == one.history and again.output_sizes == [1]


def test_gradients_are_those_of_all_rows(spark, tmp_path):
    """One step of two ranks over all rows equals one step of one process over the same rows."""
    import torch

    frame = frame_of(spark, rows=16)
    trained = estimator(tmp_path, batch_size=8, epochs=1, shuffle=False).fit(frame).model
    rows = frame.collect()
    x = torch.tensor(numpy.array([row.features.toArray() for row in rows]), dtype=torch.float32)
    y = torch.tensor([row.label for row in rows])
    model = linear()
    torch.nn.functional.mse_loss(model(x)[:, 0], y).backward()
    with torch.no_grad():
        expected = model.weight - 0.05 * model.weight.grad
    assert torch.allclose(trained.weight, expected, atol=1e-6)


class TwoHeads:
    """A module with two inputs and two outputs."""

    def __new__(cls):
        import torch

        class Module(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = torch.nn.Linear(4, 3), torch.nn.Linear(1, 1)

            def forward(self, image, number):
                return self.a(image.flatten(1)), self.b(number[:, None])

        return Module()


def test_several_inputs_and_outputs_arrays_and_a_transformation(spark, tmp_path):
    import torch

    rows = [([float(at), 1.0, 2.0, 3.0], at, [1.0, 0.0, 0.0], float(at)) for at in range(10)]
    frame = spark.createDataFrame(rows, ["image", "number", "kind", "value"])
    model = TwoHeads()
    mse = torch.nn.functional.mse_loss
    seen = estimator(
        tmp_path,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.001),
        feature_cols=["image", "number"],
        label_cols=["kind", "value"],
        input_shapes=[[-1, 2, 2], [-1]],
        metrics=None,
        epochs=1,
        batch_size=3,
        num_proc=3,
        loss=[mse, lambda output, label: mse(output[:, 0], label)],
        loss_weights=[1.0, 0.5],
        transformation_fn=lambda batch: {**batch, "number": batch["number"].astype("float32") / 10},
    )
    fitted = seen.fit(frame)
    assert fitted.output_sizes == [3, 1] and set(fitted.history[0]["train"]) == {"loss"}
    done = fitted.transform(frame.withColumn("number", frame.number.cast("float"))).collect()
    assert len(done[0].kind__output) == 3 and isinstance(done[0].value__output, float)


def test_a_pipeline_contains_an_estimator(spark, tmp_path):
    from pyspark.ml import Pipeline

    frame = frame_of(spark, rows=8)
    model = Pipeline(stages=[estimator(tmp_path, epochs=1, num_proc=1)]).fit(frame)
    assert "label__output" in model.transform(frame).columns


def test_a_keras_model_learns_predicts_and_continues(spark, tmp_path):
    import keras
    from farandole.spark.keras import KerasEstimator

    def fit(epochs):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        return KerasEstimator(num_proc=2, model=model, optimizer=keras.optimizers.SGD(0.05), store=str(tmp_path),
                              loss="mse", metrics=["mae"], feature_cols="features", label_cols="label", batch_size=8,
                              epochs=epochs, validation=0.25, verbose=0, run_id="run").fit(frame)  # fmt: skip

    frame = frame_of(spark)
    fit(4)
    model = fit(12)
    assert [entry["epoch"] for entry in model.history] == list(range(12))
    assert set(model.history[-1]["train"]) >= {"loss", "mae"} and model.history[-1]["validation"]["mae"] < 0.1
    assert numpy.allclose(model.getModel().get_weights()[0][:, 0], [2, -1], atol=0.1)
    kernel, bias = model.model.get_weights()
    for row in model.transform(frame).collect():
        assert row.label__output == pytest.approx(float(row.features.toArray() @ kernel[:, 0] + bias[0]), abs=1e-5)


@pytest.mark.parametrize(
    "change, text",
    [
        (dict(feature_cols=["weight"]), "no column 'weight'; it has features, label, held_out, word"),
        (dict(feature_cols=["word"]), "column 'word' is string: columns must be numbers"),
        (dict(validation=1.5), "validation=1.5: give a fraction between 0 and 1"),
        (dict(validation="nothing"), "validation='nothing': the DataFrame has no such column"),
        (dict(loss=None), "TorchEstimator: the parameter loss is missing"),
    ],
)
def test_bad_parameters_are_named_and_nothing_is_left(spark, tmp_path, change, text):
    from pyspark.sql import functions

    frame = frame_of(spark, rows=8).withColumn("word", functions.lit("a"))
    with pytest.raises(ValueError, match=text):
        estimator(tmp_path, **change).fit(frame)
    assert os.listdir(tmp_path) == []


def test_bad_rows_are_named(spark, tmp_path):
    frame = spark.createDataFrame([([1.0, 2.0], 1.0), ([1.0], 2.0)], ["features", "label"])
    with pytest.raises(ValueError, match="column 'features' has arrays of 1 to 2 elements"):
        estimator(tmp_path, num_proc=1).fit(frame)
    frame = spark.createDataFrame([([1.0, 2.0], 1.0), ([1.0, 2.0], None)], ["features", "label"])
    with pytest.raises(ValueError, match="column 'label' has 1 missing values"):
        estimator(tmp_path, num_proc=1).fit(frame)
    with pytest.raises(ValueError, match="no rows to train with"):
        estimator(tmp_path, num_proc=1).fit(frame.limit(0))
    with pytest.raises(TypeError, match="has no parameter sample_weight_col; it has "):
        estimator(tmp_path, sample_weight_col="weight")
    assert os.listdir(tmp_path) == []
