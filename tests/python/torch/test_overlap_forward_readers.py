"""With overlap_forward, each way to read a parameter or a gradient gives the value after the step."""

import copy
import io
import os
import pickle
import sys
import threading
import warnings

import farandole.torch as hvd
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from launch import checks_of, require
from overlap_training import (
    begin,
    both_ways,
    data,
    deferred,
    exact,
    expected_after,
    net,
    one_step,
    same_bits,
    starts_deferred,
    train,
    wrap,
)
from torch.utils._python_dispatch import TorchDispatchMode


def check_init():
    begin()


def check_readers():
    buffer = io.BytesIO()
    readers = {
        "norm": lambda m: m[0].weight.norm(),
        "data": lambda m: m[0].weight.data.clone(),
        "detach": lambda m: m[0].weight.detach().clone(),
        "numpy": lambda m: m[0].weight.detach().numpy(),
        "item": lambda m: m[0].bias[0].item(),
        "in a list": lambda m: torch.cat([m[0].weight.flatten(), m[0].bias]),
        "by keyword": lambda m: F.linear(data(9), weight=m[0].weight),
        "repr": lambda m: repr(m[0].weight),
        "pointer": lambda m: m[0].weight.data_ptr(),
        "state_dict": lambda m: m.state_dict()["0.weight"].clone(),
        "deepcopy": lambda m: copy.deepcopy(m),
        "save": lambda m: torch.save(m[0].weight, buffer),
        "broadcast": lambda m: hvd.broadcast_parameters(m.state_dict(), 0),
        "allreduce": lambda m: hvd.allreduce(m[0].weight.detach(), name="reader"),
        "gradient": lambda m: m[0].weight.grad.sum(),
        "numpy of the gradient": lambda m: m[0].weight.grad.numpy(),
        "no_grad": lambda m: torch.no_grad()(m)(data(9)),
        "inference_mode": lambda m: torch.inference_mode()(m)(data(9)),
        "ema": lambda m: torch.optim.swa_utils.AveragedModel(net()).update_parameters(m),
        "functional_call": lambda m: torch.func.functional_call(m, dict(m.named_parameters()), (data(9),)),
        "change": lambda m: m[0].weight.data.add_(0),
        "tensor": lambda m: torch.tensor(m[0].weight),
        "tensors in a list": lambda m: torch.tensor([[2.0], m[0].bias.tolist()[:1]]) + m[0].weight[0, 0],
        "as_tensor": lambda m: torch.as_tensor(m[0].weight, dtype=torch.float64),
        "asarray": lambda m: torch.asarray(m[0].weight, dtype=torch.float64),
        "new_tensor": lambda m: torch.zeros(1).new_tensor(m[0].weight),
        "nested_tensor": lambda m: torch.nested.nested_tensor([m[0].weight.grad]).unbind()[0],
        "dlpack": lambda m: torch.from_dlpack(torch.utils.dlpack.to_dlpack(m[0].weight.grad)).clone(),
        "from_dlpack": lambda m: torch.from_dlpack(m[0].weight.grad).clone(),
        "gradient of a function": lambda m: torch.func.grad(lambda w: w.square().sum())(m[0].weight),
        "product with a Jacobian": lambda m: torch.func.vjp(torch.square, m[0].weight)[0],
        "derivative": lambda m: torch.func.jvp(torch.square, (m[0].weight,), (torch.ones(24, 6),))[0],
        "functionalize": lambda m: torch.func.functionalize(torch.square)(m[0].weight),
        "of all gradients": lambda m: nn.utils.get_total_norm([one.grad for one in m.parameters()]),
        "sum": lambda m: hvd.allreduce(m[0].weight.grad, op=hvd.Max, name="of a gradient"),
        "parameter of the root": lambda m: hvd.broadcast(m[0].weight, 0, name="of a parameter"),
        "parameters of the root": lambda m: hvd.broadcast_parameters(list(m.named_parameters()), 0),
        "gather": lambda m: hvd.allgather(m[0].weight.grad, name="of gradients"),
        "pickle": lambda m: pickle.loads(pickle.dumps(m[0].weight)).detach(),
    }
    models = [net(), net()]
    optimizers = [wrap(model, bool(overlap)) for overlap, model in enumerate(models)]
    for model, optimizer in zip(models, optimizers):
        train(model, optimizer, 1)
    for step, (name, reader) in enumerate(readers.items()):
        for model, optimizer in zip(models, optimizers):
            one_step(model, optimizer, 1 + step)
        assert deferred(models[1]) == (6 if hvd.size() > 1 else 0)
        expected, result = map(reader, models)
        assert type(models[1][0].weight) is nn.Parameter, name
        assert torch.equal(models[0][0].weight, models[1][0].weight), name
        assert torch.is_tensor(expected) == torch.is_tensor(result), name
        assert not torch.is_tensor(expected) or torch.equal(expected, result), name
        del expected, result  # they may share the memory of the parameter
    optimizers[1].finish_step()
    same_bits(*models)


def check_copies_are_ordinary_parameters():
    model = net()
    starts_deferred(model)
    copied = copy.deepcopy(model)
    buffer = io.BytesIO()
    starts_deferred(net())
    torch.save(model[0].weight, buffer)
    buffer.seek(0)
    for one in (*copied.parameters(), torch.load(buffer, weights_only=True)):
        assert type(one) is nn.Parameter
    same_bits(model, copied)
    same_bits(copied, expected_after(3))


def check_gradient_of_the_last_step():
    models = [net(), net()]
    for overlap, model in enumerate(models):
        train(model, wrap(model, bool(overlap)), 3)
    for one, two in zip(models[0].parameters(), models[1].parameters()):
        assert torch.equal(one.grad, two.grad)


def check_readers_in_threads():
    model, expected = net(), expected_after(3)
    starts_deferred(model)
    results = []
    threads = [threading.Thread(target=lambda: results.append(torch.no_grad()(model)(data(9)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(torch.equal(result, expected(data(9))) for result in results)
    same_bits(model, expected)


class Scaled(torch.autograd.Function):
    """A layer of the program that gets the parameter itself."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, x.T @ gradient


class Mixed(nn.Module):
    """Parameters that no forward() of their own module reads, that are shared, or that are used twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.recurrent = nn.LSTM(6, 6, batch_first=True)
        self.norm = nn.LayerNorm(6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.twice = nn.Linear(6, 6)
        self.own = nn.Parameter(torch.randn(6, 6))
        self.head = nn.Linear(6, 6)
        self.head.weight = self.tied.weight
        exact(self)

    def forward(self, x):
        x = self.norm(x[None])
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.recurrent(x)[0]
        x = Scaled.apply(self.twice(self.twice(x[0])), self.own)
        return self.head(x)


def check_shared_and_indirect_parameters():
    count = both_ways(lambda m, o: train(m, o, 6), make_model=Mixed)
    assert count > 0 or hvd.size() == 1


def check_contexts_of_the_reader_do_not_matter():
    def train_within(model, optimizer):
        for step in range(6):
            optimizer.zero_grad()
            with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
                output = model(data_on_cpu[step])
            output.square().sum().backward()
            optimizer.step()

    data_on_cpu = [data(step) for step in range(6)]
    both_ways(train_within, make=lambda p: torch.optim.Adam(p, lr=0.01))


def check_evaluation_between_steps():
    def train_and_evaluate(model, optimizer):
        losses = []
        for step in range(6):
            one_step(model, optimizer, step)
            with torch.no_grad():
                losses.append(model(data(77)).sum().item())
        return losses

    losses = [both_ways(train_and_evaluate)]
    model = net()
    assert losses[0] == train_and_evaluate(model, wrap(model, False))


def check_functions_of_torch_func():
    """Parameters as arguments and as captured tensors, in functions that transform functions."""

    def loss(parameters, model, x):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    def train_functional(model, optimizer):
        results = []
        for step in range(6):
            one_step(model, optimizer, step)
            held = dict(model.named_parameters()) if step % 2 else None
            if held:
                of_all = torch.func.grad(loss)(held, model, data(9))
                of_samples = torch.func.vmap(torch.func.grad(loss), (None, None, 0))(held, model, data(9))
                results += [*of_all.values(), *of_samples.values()]
            else:  # the parameters are captured
                results.append(torch.func.grad(lambda x: model(x).sum())(data(9)))
                results.append(torch.func.vmap(model)(data(9)).detach())
                results.append(torch.func.jacrev(model)(data(9)).detach())
        return results

    models = [net(), net()]
    expected, results = (train_functional(model, wrap(model, bool(way))) for way, model in enumerate(models))
    assert len(results) > 30 and all(map(torch.equal, expected, results))
    same_bits(*models)


def check_scripted_models():
    """TorchScript reads parameters in C++, in training and in evaluation."""

    def traced():
        torch.manual_seed(0)
        return torch.jit.trace(nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 3)), data(0))

    def train_and_evaluate(model, optimizer):
        results, count = [], 0
        for step in range(6):
            one_step(model, optimizer, step)
            count += deferred(model)
            with torch.no_grad():
                results.append(model(data(77)))
        return torch.stack(results), count

    models = [exact(traced()), exact(traced())]
    expected, results = (train_and_evaluate(model, wrap(model, bool(way))) for way, model in enumerate(models))
    assert torch.equal(expected[0], results[0]) and (results[1] > 0 or hvd.size() == 1)
    same_bits(*models)


def check_functions_that_record():
    model = net()
    expected = expected_after(3)
    for make in (
        lambda: torch.jit.script(Scripted(model[2])),
        lambda: torch.jit.trace(model, data(9)),
        lambda: torch.fx.experimental.proxy_tensor.make_fx(model)(data(9)),
        lambda: torch.compile(model, backend="eager", fullgraph=True),
    ):
        model.load_state_dict(net().state_dict())
        optimizer = starts_deferred(model)
        function = make()
        is_scripted = isinstance(function, torch.jit.ScriptModule) and not hasattr(function, "0")
        x = torch.ones(2, 24) if is_scripted else data(9)
        assert torch.equal(function(x), (Scripted(expected[2]) if is_scripted else expected)(x))
        optimizer.finish_step()
        same_bits(model, expected)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


class Scripted(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x) + torch.tensor(1.0)


def check_a_compiled_function_finds_ordinary_parameters():
    """It was compiled before the step, or is compiled after it."""
    model = net()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = starts_deferred(model)
    assert torch.equal(compiled(data(9)), expected_after(3)(data(9)))
    torch._dynamo.utils.counters.clear()  # so that steps are deferred, although compiled code exists
    train(model, optimizer, 1, begin=3)
    assert deferred(model) == (6 if hvd.size() > 1 else 0)
    assert torch.equal(compiled(data(9)), expected_after(4)(data(9)))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def check_evaluation_of_transformers():
    """Their fast path, which rounds otherwise, is taken as without the option."""

    def transformer():
        torch.manual_seed(4)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        return exact(nn.Sequential(nn.Linear(6, 8), nn.TransformerEncoder(layer, 2)))

    def train_and_evaluate(model, optimizer):
        results = []
        for step in range(5):
            optimizer.zero_grad()
            model(data(step)[None]).square().sum().backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                results.append(model(data(50 + step)[None]))
            model.train()
        return torch.stack(results)

    models = [transformer(), transformer()]
    expected, results = (train_and_evaluate(model, wrap(model, bool(way))) for way, model in enumerate(models))
    assert torch.equal(expected, results)
    same_bits(*models)


def check_parametrizations():
    class Parametrized(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(5)
            self.first = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
            self.second = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
            self.third = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))
            self.table = nn.Embedding(5, 8, max_norm=0.5)
            exact(self)

        def forward(self, x):
            words = self.table((x[:, 0] * 100).long().abs() % 5)
            with nn.utils.parametrize.cached():
                return self.third(self.second(self.first(x) + words)) + self.third(words)

    count = both_ways(lambda m, o: train(m, o, 6), make_model=Parametrized)
    assert count > 0 or hvd.size() == 1


def check_recomputed_activations():
    for reentrant in (True, False):

        class Recomputes(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = net(1), net(2)

            def forward(self, x, reentrant=reentrant):
                y = torch.utils.checkpoint.checkpoint(self.first, x.requires_grad_(), use_reentrant=reentrant)
                return torch.utils.checkpoint.checkpoint(self.second, F.pad(y, (0, 3)), use_reentrant=reentrant)

        count = both_ways(lambda m, o: train(m, o, 6), make_model=Recomputes)
        assert count == (12 * 5 if hvd.size() > 1 else 0)


def check_autocast():
    def train_mixed(model, optimizer):
        count = 0
        for step in range(6):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(data(step)).square().sum()
            loss.backward()
            optimizer.step()
            count += deferred(model)
        return count

    assert both_ways(train_mixed) == (30 if hvd.size() > 1 else 0)
    assert both_ways(train_mixed, make=lambda p: torch.optim.Adam(p, lr=0.01)) == (30 if hvd.size() > 1 else 0)


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.names.append(str(function))
        return function(*arguments, **(options or {}))


def check_modes_of_the_reader_do_not_see_the_update():
    def train_recorded(model, optimizer):
        of_steps = []
        for step in range(5):
            optimizer.zero_grad()
            with Recorder() as recorder:
                loss = model(data(step)).square().sum()
            loss.backward()
            optimizer.step()
            of_steps.append(recorder.names)
        return of_steps

    of_steps = both_ways(train_recorded)
    assert all(names == of_steps[0] for names in of_steps) and len(of_steps[0]) > 5


def check_memory_that_another_tensor_uses():
    """Nothing tells who reads a view, so the step waits; it defers again when the view is gone."""
    model, expected = net(width=600), net(width=600)
    optimizer, other = wrap(model, True), wrap(expected, False)
    train(model, optimizer, 3)
    train(expected, other, 3)
    optimizer.finish_step()
    held = model.state_dict()
    array = model[2].weight.detach().numpy()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in (3, 4):
            one_step(model, optimizer, step)
            one_step(expected, other, step)
            for name, tensor in expected.state_dict().items():
                assert torch.equal(held[name], tensor), name
            assert (array == expected[2].weight.detach().numpy()).all()
            assert deferred(model) == 0
    texts = [str(one.message) for one in caught if "uses the parameter's memory" in str(one.message)]
    assert len(texts) == (1 if hvd.size() > 1 else 0) and all("weight" in text or "bias" in text for text in texts)
    del held
    train(model, optimizer, 1, begin=5)
    train(expected, other, 1, begin=5)
    assert deferred(model) == (5 if hvd.size() > 1 else 0)
    assert (array == expected[2].weight.detach().numpy()).all()
    del array
    train(model, optimizer, 1, begin=6)
    assert deferred(model) == (6 if hvd.size() > 1 else 0)


def check_gradients_in_one_tensor_of_the_program():
    models = [net(), net()]
    for overlap, model in enumerate(models):
        optimizer = wrap(model, bool(overlap))
        flat = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
        places = torch.split(flat, [parameter.numel() for parameter in model.parameters()])
        sums = []
        for step in range(5):
            for parameter, place in zip(model.parameters(), places):
                parameter.grad = place.data.view_as(parameter)
            flat.zero_()
            model(data(step)).square().sum().backward()
            optimizer.step()
            sums.append(flat.clone())
        if overlap == 0:
            expected = sums
    assert all(map(torch.equal, expected, sums))
    same_bits(*models)


def check_a_forked_process_reads_the_step():
    model, expected = net(), expected_after(3)
    starts_deferred(model)
    child = os.fork()
    if child == 0:
        os._exit(0 if all(map(torch.equal, model.parameters(), expected.parameters())) else 7)
    assert not deferred(model)  # the child had nothing to wait for
    assert os.waitpid(child, 0)[1] == 0
    same_bits(model, expected)


def check_functions_are_as_before_after_the_step():
    def present():
        kinds = torch._C.ScriptMethod.__call__, torch._C.ScriptFunction.__call__, torch.Tensor.new_tensor
        return torch.tensor, torch.overrides.has_torch_function, torch.compile, torch.jit.script, *kinds

    starts_deferred(net()).finish_step()  # no step of the other checks is open
    before = present()
    model = net()
    optimizer = starts_deferred(model)
    assert (present() != before) == (hvd.size() > 1)
    optimizer.finish_step()
    assert all(one is other or one == other for one, other in zip(before, present()))
    assert "new_tensor" not in vars(torch.Tensor)


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check, deadline_s=180)
