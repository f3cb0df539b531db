"""The laboratory's trainer of many CNNs at once: each model against torch's modules and against the
product's trainer, models apart from one another, the GPU's fused kernels through Triton's
interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from capemix.errors import InputError
from capemix.evaluate.cnn import CNN, Training, train
from capemix.evaluate.cnn import predict as predict_one
from capemix_research.trainer import cnns as side_by_side
from capemix_research.trainer.cnns import ManyCNNs, plain_block
from capemix_research.trainer.many import models_that_fit, predict, train_many
from networks import bars, generator, some_images, some_labels, written_out

pytestmark = pytest.mark.usefixtures("one_torch_thread")
CPU = torch.device("cpu")


@pytest.fixture
def no_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "DROPOUT", 0.0)


def copied(cnns: ManyCNNs, k: int) -> nn.Sequential:
    """Model ``k`` in torch's modules, without dropout."""
    net = written_out(dropout=0.0)
    own = {
        "0.weight": cnns.conv_weight[k].view(32, 1, 5, 5),
        "0.bias": cnns.conv_bias[k],
        "2.weight": cnns.bn_weight[k],
        "2.bias": cnns.bn_bias[k],
        "2.running_mean": cnns.running_mean[k],
        "2.running_var": cnns.running_var[k],
        "2.num_batches_tracked": torch.tensor(0),
    }
    for index, name in ((5, "1"), (8, "2"), (11, "3")):
        own[f"{index}.weight"] = getattr(cnns, f"weight{name}")[k].T
        own[f"{index}.bias"] = getattr(cnns, f"bias{name}")[k, 0]
    net.load_state_dict(own)
    return net.train(cnns.training)


def same(cnns: ManyCNNs, k: int, alone: CNN) -> bool:
    """Whether model ``k`` is ``alone``: every parameter to the bit, statistics but for rounding."""
    net = copied(cnns, k)
    own, others = list(net.parameters()), list(alone.parameters())
    statistics = [
        torch.allclose(a.float(), b.float(), rtol=1e-6)
        for a, b in zip(list(net.buffers())[:2], list(alone.buffers())[:2], strict=True)
    ]
    return all(map(torch.equal, own, others)) and all(statistics) and len(own) == len(others)


def uneven(seeds: list[int]) -> ManyCNNs:
    """Models whose batch norm is not the identity it starts as; some scales are negative."""
    cnns = ManyCNNs(seeds)
    draws = generator(7)
    with torch.no_grad():
        cnns.bn_weight.copy_(torch.randn(cnns.bn_weight.shape, generator=draws))
        cnns.bn_bias.copy_(torch.randn(cnns.bn_bias.shape, generator=draws))
        cnns.running_mean.copy_(torch.rand(cnns.running_mean.shape, generator=draws))
        cnns.running_var.copy_(torch.rand(cnns.running_var.shape, generator=draws) + 0.5)
    return cnns


# -- the network -----------------------------------------------------------------------------------


def test_the_layers_and_639306_parameters() -> None:
    """How large each layer is; that they are torch's modules, in the paper's order, is below."""
    sizes = {name: p[0].numel() for name, p in ManyCNNs([0]).named_parameters()}
    assert sizes == {
        **{"conv_weight": 5 * 5 * 32, "conv_bias": 32, "bn_weight": 32, "bn_bias": 32},
        **{"weight1": 32 * 14 * 14 * 100, "bias1": 100},
        **{"weight2": 100 * 100, "bias2": 100, "weight3": 100 * 10, "bias3": 10},
    }
    for models in (1, 3):
        count = sum(p.numel() for p in ManyCNNs(range(models)).parameters())
        assert count == models * 639_306
    assert sum(p.numel() for p in written_out().parameters()) == 639_306


@pytest.mark.usefixtures("no_dropout")
@pytest.mark.parametrize("training", [True, False])
def test_every_model_is_torchs_modules_in_values_gradients_and_running_statistics(
    training: bool,
) -> None:
    cnns = uneven([0, 1]).train(training)
    nets = [copied(cnns, k) for k in range(2)]
    images, labels = some_images(2, 6), some_labels(2, 6)
    logits = cnns(images)
    losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / 6
    losses.backward()
    for k, net in enumerate(nets):
        expected = net(images[k].view(6, 1, 28, 28))
        functional.cross_entropy(expected, labels[k]).backward()
        torch.testing.assert_close(logits[k], expected, rtol=1e-4, atol=1e-4)
        grads = {name: p.grad for name, p in net.named_parameters()}
        for name, own in (
            ("0.weight", cnns.conv_weight.grad[k].view(32, 1, 5, 5)),
            ("0.bias", cnns.conv_bias.grad[k]),
            ("2.weight", cnns.bn_weight.grad[k]),
            ("2.bias", cnns.bn_bias.grad[k]),
            ("5.weight", cnns.weight1.grad[k].T),
            ("5.bias", cnns.bias1.grad[k, 0]),
            ("8.weight", cnns.weight2.grad[k].T),
            ("8.bias", cnns.bias2.grad[k, 0]),
            ("11.weight", cnns.weight3.grad[k].T),
            ("11.bias", cnns.bias3.grad[k, 0]),
        ):
            torch.testing.assert_close(own, grads[name], rtol=1e-3, atol=1e-5, msg=name)
        torch.testing.assert_close(cnns.running_mean[k], net[2].running_mean)
        torch.testing.assert_close(cnns.running_var[k], net[2].running_var)


def test_dropout_drops_half_in_training_and_nothing_after(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, bool]] = []
    real = functional.dropout

    def spied(values: Tensor, p: float, training: bool) -> Tensor:
        seen.append((p, training))
        return real(values, p, training)

    monkeypatch.setattr(functional, "dropout", spied)
    cnns, images = ManyCNNs([0]), some_images(1, 4)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        assert not torch.equal(cnns.train()(images), cnns(images))
    assert seen == [(0.5, True)] * 4
    assert torch.equal(cnns.eval()(images), cnns(images))


def test_every_model_has_the_weights_of_its_own_seed() -> None:
    cnns = ManyCNNs([3, 4])
    for k, seed in enumerate([3, 4]):
        assert same(cnns, k, CNN(seed))
        assert not same(cnns, 1 - k, CNN(seed))


# -- side by side ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_dropout")
def test_a_model_feels_nothing_of_the_one_beside_it() -> None:
    images, labels = some_images(2, 5), some_labels(2, 5)
    together = uneven([4, 9]).train()
    alone = uneven([4, 9]).train()

    def gradients(cnns: ManyCNNs, of: Tensor) -> dict[str, Tensor]:
        logits = cnns(of)
        functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
        return {name: p.grad[0] for name, p in cnns.named_parameters() if p.grad is not None}

    changed = images.clone()
    changed[1] = some_images(1, 5, seed=50)[0] * 10
    first, second = gradients(together, images), gradients(alone, changed)
    assert len(first) == 10
    for name in first:
        assert torch.equal(first[name], second[name]), name
    assert torch.equal(together.running_mean[0], alone.running_mean[0])
    assert not torch.equal(together.running_mean[1], alone.running_mean[1])


@pytest.mark.parametrize("soft", [False, True])
def test_training_two_together_is_training_each_by_the_products_trainer(soft: bool) -> None:
    """The plain trainer is the oracle; only how the running variance is rounded may differ."""
    rows, labels = some_images(2, 32), some_labels(2, 32)
    if soft:
        labels = torch.softmax(torch.randn(2, 32, 10, generator=generator(2)), 2)
    how = Training(epochs=2, learning_rate=1e-3, batch=16)
    marks: list[tuple[int, int]] = []
    together = train_many(rows, labels, [5, 6], how, lambda done, of: marks.append((done, of)))
    assert marks == [(1, 4), (2, 4), (3, 4), (4, 4)]
    images = some_images(1, 50, seed=2)[0]
    for k, seed in enumerate([5, 6]):
        alone = train(rows[k], labels[k], seed, how)
        assert same(together, k, alone)
        assert torch.equal(predict(together, images)[k], predict_one(alone, images))
    other = train(rows[0], labels[0], 6, how)
    assert not same(together, 0, other)


def test_the_oracle_sees_another_training() -> None:
    """A rate, a batch or a row that is not the same gives another model."""
    rows, labels = some_images(1, 32), some_labels(1, 32)
    how = Training(epochs=1, learning_rate=1e-3, batch=16)
    found = train_many(rows, labels, [5], how)
    assert same(found, 0, train(rows[0], labels[0], 5, how))
    for wrong in (replace(how, learning_rate=1.001e-3), replace(how, batch=8)):
        assert not same(found, 0, train(rows[0], labels[0], 5, wrong))
    changed = rows[0].clone()
    changed[7] += 0.01
    assert not same(found, 0, train(changed, labels[0], 5, how))


# -- the fused kernels, through Triton's interpreter -----------------------------------------------

FUSED = """
import sys
import numpy as np
import torch
from capemix_research.trainer.conv_block import FusedBlock

found = np.load(sys.argv[1])
given = [torch.tensor(found[name]) for name in ("images", "weight", "bias", "scale", "shift")]
for tensor in given[1:]:
    tensor.requires_grad_()
pooled, mean, variance = FusedBlock.apply(*given)
(pooled * torch.tensor(found["against"])).sum().backward()
np.savez(
    sys.argv[2],
    pooled=pooled.detach(),
    mean=mean,
    variance=variance,
    **{name: t.grad for name, t in zip(("weight", "bias", "scale", "shift"), given[1:])},
)
"""

Block = Callable[..., tuple[Tensor, Tensor, Tensor]]
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def block_inputs() -> Arrays:
    draws = generator(11)
    models, rows = 2, 5  # more than one program goes through, so that tiles end in the middle
    shapes = {
        "images": (models, rows, 784),
        "weight": (models, 32, 25),
        "bias": (models, 32),
        "scale": (models, 32),
        "shift": (models, 32),
        "against": (models, rows, 6272),
    }
    return {name: torch.randn(shape, generator=draws).numpy() for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def fused(block_inputs: Arrays, tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    """What the GPU's kernels compute, run in a process of its own: the interpreter is chosen when
    Triton is imported."""
    if sys.platform != "linux":
        pytest.skip("Triton is for Linux")
    folder = tmp_path_factory.mktemp("fused")
    np.savez(folder / "in.npz", **block_inputs)
    subprocess.run(
        [sys.executable, "-c", FUSED, folder / "in.npz", folder / "out.npz"],
        check=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )
    return dict(np.load(folder / "out.npz"))


def by(block: Block, inputs: Arrays) -> Arrays:
    given = [torch.tensor(inputs[n]) for n in ("images", "weight", "bias", "scale", "shift")]
    for tensor in given[1:]:
        tensor.requires_grad_()
    pooled, mean, variance = block(*given)
    (pooled * torch.tensor(inputs["against"])).sum().backward()
    grads = zip(("weight", "bias", "scale", "shift"), given[1:], strict=True)
    return {
        "pooled": pooled.detach().numpy(),
        "mean": mean.detach().numpy(),
        "variance": variance.detach().numpy(),
        **{name: t.grad.numpy() for name, t in grads if t.grad is not None},
    }


def differing(fused: Arrays, other: Arrays) -> list[str]:
    """What is off by more than rounding, relative to its largest entry."""
    return [
        name
        for name in fused
        if np.abs(fused[name] - other[name]).max() > 1e-4 * np.abs(other[name]).max()
    ]


def law(
    *,
    padding: int = 2,
    relu_last: bool = False,
    average: bool = False,
    still: bool = False,
    unbiased: bool = False,
) -> Block:
    """The block written out, or with one thing wrong."""

    def block(
        images: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        pooled, means, variances = [], [], []
        for k in range(len(images)):
            wide = functional.pad(images[k].view(-1, 1, 28, 28), (padding, 4 - padding) * 2)
            values = functional.conv2d(wide, weight[k].view(32, 1, 5, 5), bias[k])
            values = values if relu_last else functional.relu(values)
            variance, mean = torch.var_mean(values, dim=(0, 2, 3), correction=int(unbiased))
            means.append(mean)
            variances.append(variance)
            if still:
                variance, mean = variance.detach(), mean.detach()
            values = (values - mean.view(-1, 1, 1)) / (variance.view(-1, 1, 1) + 1e-5).sqrt()
            values = values * scale[k].view(-1, 1, 1) + shift[k].view(-1, 1, 1)
            values = functional.relu(values) if relu_last else values
            pool = functional.avg_pool2d if average else functional.max_pool2d
            pooled.append(pool(values, 2).flatten(1))
        return torch.stack(pooled), torch.stack(means), torch.stack(variances)

    return block


def test_the_fused_block_is_torchs_layers(block_inputs: Arrays, fused: Arrays) -> None:
    assert sorted(fused) == sorted(
        ["pooled", "mean", "variance", "weight", "bias", "scale", "shift"]
    )
    assert differing(fused, by(plain_block, block_inputs)) == []
    assert differing(fused, by(law(), block_inputs)) == []


@pytest.mark.parametrize(
    ("wrong", "shows_in"),
    [
        ({"padding": 1}, {"pooled", "weight"}),
        ({"relu_last": True}, {"pooled", "mean", "variance", "weight"}),
        ({"average": True}, {"pooled", "weight", "scale"}),
        ({"still": True}, {"weight", "bias"}),
        ({"unbiased": True}, {"variance"}),
    ],
)
def test_the_comparison_rejects_a_wrong_law(
    block_inputs: Arrays, fused: Arrays, wrong: dict[str, bool], shows_in: set[str]
) -> None:
    assert shows_in <= set(differing(fused, by(law(**wrong), block_inputs)))


# -- on a CPU --------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_model_and_leaves_torch_as_it_was() -> None:
    rows, labels = bars(64, 2)
    how = Training(epochs=2, learning_rate=1e-3, batch=32)
    torch.manual_seed(99)
    state, precision = torch.get_rng_state(), torch.get_float32_matmul_precision()
    first, second = (train_many(rows[None], labels[None], [8], how) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_float32_matmul_precision() == precision
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_every_epoch_takes_a_fresh_order_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    real = ManyCNNs.forward

    def spied(self: ManyCNNs, images: Tensor) -> Tensor:
        seen.append(images[0, :, 0].round().long())
        return real(self, images)

    monkeypatch.setattr(ManyCNNs, "forward", spied)
    rows = torch.arange(12.0)[:, None].expand(12, 784).contiguous()
    labels = torch.zeros(1, 12, dtype=torch.long)
    train_many(rows[None], labels, [0], Training(epochs=2, batch=4))
    epochs = [torch.cat(seen[:3]).tolist(), torch.cat(seen[3:]).tolist()]
    assert [sorted(epoch) for epoch in epochs] == [list(range(12))] * 2
    assert epochs[0] != epochs[1]


def test_predictions_come_in_parts_and_for_each_model() -> None:
    cnns = ManyCNNs([0, 1]).eval()
    images = some_images(2, 11)
    whole = cnns(images).argmax(2)
    assert torch.equal(predict(cnns, images, at_once=4), whole)
    assert predict(cnns, images[0]).shape == (2, 11)
    assert torch.equal(predict(cnns, images[0])[0], whole[0])


# -- refusals --------------------------------------------------------------------------------------


def test_as_many_models_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert models_that_fit(60_000, 784, CPU) == 1
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (10 * 10**9, 10 * 10**9))
    some = models_that_fit(60_000, 784, gpu)
    assert 1 < some < 32
    assert models_that_fit(1_000, 784, gpu) == 32
    assert models_that_fit(1_000, 784, gpu, most=5) == 5
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (10**6, 10**9))
    with pytest.raises(InputError, match="too little free memory"):
        models_that_fit(60_000, 784, gpu)


def test_rows_that_do_not_fill_a_batch_are_refused() -> None:
    with pytest.raises(InputError, match=r"must fill a batch of 128 \(got 5\)"):
        train_many(some_images(1, 5), some_labels(1, 5), [0], Training())


def test_the_worker_needs_torch_and_numpy_alone(tmp_path: Path) -> None:
    """It trains from a source tree where nothing else can be installed."""
    absent = ("cryptography", "numba", "scipy", "sklearn", "pandas", "pyarrow", "dp_accounting")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({(*absent, 'typer', 'rich', 'pooch')}));"
        "import capemix_research.experiments.worker"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
