"""The paper's CNN and its trainer: layer by layer against torch's own modules, models apart from
one another, the GPU's fused kernels through Triton's interpreter, and training on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from capemix.errors import InputError
from capemix.evaluate import cnn, many
from capemix.evaluate.cnn import ManyCNNs, plain_block
from capemix.evaluate.many import Training, device_named, models_that_fit, predict, train_many

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tests run side by side; more threads than cores make torch wait for itself."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cnn, "DROPOUT", 0.0)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_images(models: int, rows: int, seed: int = 0) -> Tensor:
    return torch.rand(models, rows, 784, generator=generator(seed)) * 2 - 1


def some_labels(models: int, rows: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 10, (models, rows), generator=generator(seed))


def written_out(dropout: float = 0.5) -> nn.Sequential:
    """Appendix A in torch's modules, independent of ours."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, 1, 2),
        nn.ReLU(),
        nn.BatchNorm2d(32),
        nn.MaxPool2d(2, 2),
        nn.Flatten(),
        nn.Linear(6272, 100),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(100, 100),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(100, 10),
    )


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


def test_weights_are_drawn_as_torch_draws_them() -> None:
    """Uniform within 1 / sqrt(fan in), weights and biases alike."""
    cnns = ManyCNNs([3])
    for values, fan_in in (
        (cnns.conv_weight, 25),
        (cnns.conv_bias, 25),
        (cnns.weight1, 6272),
        (cnns.bias1, 6272),
        (cnns.weight2, 100),
        (cnns.weight3, 100),
    ):
        bound = fan_in**-0.5
        scaled = values.detach().flatten() / bound
        assert scaled.abs().max() <= 1
        if len(scaled) > 500:
            assert scaled.abs().max() > 0.99
            assert abs(float(scaled.std()) - 3**-0.5) < 0.03


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


def test_training_two_together_is_training_each_alone() -> None:
    rows, labels = some_images(2, 32), some_labels(2, 32)
    how = Training(epochs=2, learning_rate=1e-3, batch=16)
    marks: list[tuple[int, int]] = []
    together = train_many(rows, labels, [5, 6], how, lambda done, of: marks.append((done, of)))
    assert marks == [(1, 4), (2, 4), (3, 4), (4, 4)]
    for k, seed in enumerate([5, 6]):
        alone = train_many(rows[k : k + 1], labels[k : k + 1], [seed], how)
        for name, value in alone.state_dict().items():
            assert torch.equal(together.state_dict()[name][k], value[0]), name
    other = train_many(rows[:1], labels[:1], [6], how)
    assert not torch.equal(other.weight3, together.weight3[:1])


# -- the fused kernels, through Triton's interpreter -----------------------------------------------

FUSED = """
import sys
import numpy as np
import torch
from capemix.evaluate.conv_block import FusedBlock

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


# -- training on a CPU -----------------------------------------------------------------------------


def bars(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images with a bright bar whose place is the class, in noise."""
    draws = generator(seed)
    labels = torch.randint(0, 10, (rows,), generator=draws)
    images = 0.3 * torch.randn(rows, 28, 28, generator=draws)
    for row, label in enumerate(labels.tolist()):
        images[row, 2 * label + 3 : 2 * label + 5] += 1.0
    return images.flatten(1), labels


def test_a_small_slice_is_learned_on_a_cpu() -> None:
    rows, labels = bars(256, 0)
    how = Training(epochs=4, learning_rate=3e-3, batch=32)
    cnns = train_many(rows[None], labels[None], [0], how)
    assert not cnns.training
    test, truth = bars(200, 1)
    assert float((predict(cnns, test)[0] == truth).float().mean()) > 0.9
    fresh = predict(ManyCNNs([0]).eval(), test)[0]
    assert float((fresh == truth).float().mean()) < 0.4


def test_labels_may_say_how_likely_each_class_is() -> None:
    rows, labels = bars(256, 0)
    how = Training(epochs=4, learning_rate=3e-3, batch=32)
    sure = torch.nn.functional.one_hot(labels, 10).float()
    hard, soft, shifted = (
        train_many(rows[None], given[None], [0], how)
        for given in (labels, sure, sure.roll(1, dims=1))
    )
    test, truth = bars(200, 1)
    assert torch.equal(predict(hard, test), predict(soft, test))
    assert float((predict(shifted, test)[0] == (truth + 1) % 10).float().mean()) > 0.9


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


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_named("cpu") == CPU
    with pytest.raises(InputError, match=r"--device must be cpu or cuda \(got tpu\)"):
        device_named("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"asks for a GPU, and torch sees none .*--device cpu"):
        device_named("cuda")


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


def test_trainings_that_make_no_sense_are_refused() -> None:
    assert Training() == Training(epochs=100, learning_rate=1e-5, batch=128)  # the paper's
    with pytest.raises(InputError, match=r"--epochs must be at least 1 \(got 0\)"):
        Training(epochs=0)
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="--learning-rate must be above 0"):
            Training(learning_rate=rate)
    with pytest.raises(InputError, match=r"must fill a batch of 128 \(got 5\)"):
        train_many(some_images(1, 5), some_labels(1, 5), [0], Training())


def test_a_trainer_without_torch_is_not_imported_with_the_package(tmp_path: Path) -> None:
    code = "import sys, capemix.evaluate; print('torch' in sys.modules, 'triton' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.stdout.split() == ["False", "False"]
    assert many.Training is Training


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


@pytest.mark.parametrize("soft", [False, True])
def test_no_class_is_predicted_that_does_not_exist(soft: bool) -> None:
    """The CNN has ten outputs; a model that has hardly been trained would use them all."""
    rng = np.random.default_rng(0)
    rows, labels = rng.random((12, 784)), np.arange(12) % 3
    truth = np.eye(10, dtype=np.float32)[labels] if soft else labels
    said = many.train_and_predict(
        rows, truth, rng.normal(size=(400, 784)) * 5, [1], Training(1, 1e-5, 4), torch.device("cpu")
    )
    assert set(said.ravel()) <= {0, 1, 2}
