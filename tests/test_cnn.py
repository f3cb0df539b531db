"""The product's CNN and its trainer: against torch's modules in the paper's order, and on a CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from capemix.errors import InputError
from capemix.evaluate import cnn
from capemix.evaluate.cnn import CNN, Training, device_named, predict, train, train_and_predict
from networks import bars, some_images, some_labels, written_out

pytestmark = pytest.mark.usefixtures("one_torch_thread")
CPU = torch.device("cpu")


def pairs(parameters: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Each layer's weight and bias."""
    return list(zip(parameters[::2], parameters[1::2], strict=True))


# -- the network -----------------------------------------------------------------------------------


def test_the_layers_and_639306_parameters() -> None:
    """How large each layer is; that they are torch's modules, in the paper's order, is below."""
    sizes = [(p.numel(), q.numel()) for p, q in pairs(list(CNN(0).parameters()))]
    assert sizes == [
        (5 * 5 * 32, 32),
        (32, 32),
        (32 * 14 * 14 * 100, 100),
        (100 * 100, 100),
        (100 * 10, 10),
    ]
    for net in (CNN(0), written_out()):
        assert sum(p.numel() for p in net.parameters()) == 639_306


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_the_papers_in_values_gradients_and_running_statistics(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cnn, "DROPOUT", 0.0)
    own, net = CNN(3).train(training), written_out(dropout=0.0).train(training)
    net.load_state_dict(dict(zip(net.state_dict(), own.state_dict().values(), strict=True)))
    images, labels = some_images(1, 6)[0], some_labels(1, 6)[0]
    logits, expected = own(images), net(images.view(6, 1, 28, 28))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    for found in (logits, expected):
        functional.cross_entropy(found, labels).backward()
    for mine, other in zip(own.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-5)
    for mine, other in zip(own.buffers(), net.buffers(), strict=True):
        torch.testing.assert_close(mine, other)


def test_dropout_drops_half_in_training_and_nothing_after(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, bool]] = []
    real = functional.dropout

    def spied(values: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
        seen.append((p, training))
        return real(values, p, training, inplace)

    monkeypatch.setattr(functional, "dropout", spied)
    net, images = CNN(0), some_images(1, 4)[0]
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        assert not torch.equal(net.train()(images), net(images))
    assert seen == [(0.5, True)] * 4
    assert torch.equal(net.eval()(images), net(images))


def test_weights_are_drawn_as_torch_draws_them() -> None:
    """Uniform within 1 / sqrt(fan in), weights and biases alike."""
    (weight0, bias0), _, (weight1, bias1), (weight2, _), (weight3, _) = pairs(
        list(CNN(3).parameters())
    )
    for values, fan_in in (
        (weight0, 25),
        (bias0, 25),
        (weight1, 6272),
        (bias1, 6272),
        (weight2, 100),
        (weight3, 100),
    ):
        bound = fan_in**-0.5
        scaled = values.detach().flatten() / bound
        assert scaled.abs().max() <= 1
        if len(scaled) > 500:
            assert scaled.abs().max() > 0.99
            assert abs(float(scaled.std()) - 3**-0.5) < 0.03


# -- training on a CPU -----------------------------------------------------------------------------


def test_a_small_slice_is_learned_on_a_cpu() -> None:
    rows, labels = bars(256, 0)
    how = Training(epochs=4, learning_rate=3e-3, batch=32)
    net = train(rows, labels, 0, how)
    assert not net.training
    test, truth = bars(200, 1)
    assert float((predict(net, test) == truth).float().mean()) > 0.9
    fresh = predict(CNN(0).eval(), test)
    assert float((fresh == truth).float().mean()) < 0.4


def test_labels_may_say_how_likely_each_class_is() -> None:
    rows, labels = bars(256, 0)
    how = Training(epochs=4, learning_rate=3e-3, batch=32)
    sure = functional.one_hot(labels, 10).float()
    hard, soft, shifted = (
        train(rows, given, 0, how) for given in (labels, sure, sure.roll(1, dims=1))
    )
    test, truth = bars(200, 1)
    assert torch.equal(predict(hard, test), predict(soft, test))
    assert float((predict(shifted, test) == (truth + 1) % 10).float().mean()) > 0.9


def test_the_same_seed_gives_the_same_model_and_leaves_torch_as_it_was() -> None:
    rows, labels = bars(64, 2)
    how = Training(epochs=2, learning_rate=1e-3, batch=32)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    first, second = (train(rows, labels, 8, how) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    other = train(rows, labels, 9, how)
    assert not torch.equal(other[-1].weight, first[-1].weight)


def test_every_epoch_takes_a_fresh_order_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    real = CNN.forward

    def spied(self: CNN, images: Tensor) -> Tensor:
        seen.append(images[:, 0].round().long())
        return real(self, images)

    monkeypatch.setattr(CNN, "forward", spied)
    rows = torch.arange(12.0)[:, None].expand(12, 784).contiguous()
    train(rows, torch.zeros(12, dtype=torch.long), 0, Training(epochs=2, batch=4))
    epochs = [torch.cat(seen[:3]).tolist(), torch.cat(seen[3:]).tolist()]
    assert [sorted(epoch) for epoch in epochs] == [list(range(12))] * 2
    assert epochs[0] != epochs[1]


def test_predictions_come_in_parts() -> None:
    net, images = CNN(0).eval(), some_images(1, 11)[0]
    assert torch.equal(predict(net, images, at_once=4), net(images).argmax(1))


def test_a_seeds_model_is_the_same_whichever_others_are_asked_for() -> None:
    (rows, labels), (test, _) = bars(64, 2), bars(50, 3)
    how = Training(epochs=2, learning_rate=1e-3, batch=32)
    marks: list[tuple[int, int]] = []
    said = train_and_predict(
        *(rows.numpy(), labels.numpy(), test.numpy(), [5, 6], how, CPU),
        lambda done, of: marks.append((done, of)),
    )
    assert marks == [(1, 4), (2, 4), (3, 4), (4, 4)]
    for of_seed, seed in zip(said, [5, 6], strict=True):
        alone = predict(train(rows, labels, seed, how), test)
        np.testing.assert_array_equal(of_seed, alone.numpy())
    assert (said[0] != said[1]).any()


# -- refusals --------------------------------------------------------------------------------------


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_named("cpu") == CPU
    with pytest.raises(InputError, match=r"device must be cpu or cuda \(got tpu\)"):
        device_named("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"asks for a GPU, and torch sees none .*use cpu"):
        device_named("cuda")


def test_trainings_that_make_no_sense_are_refused() -> None:
    assert Training() == Training(epochs=100, learning_rate=1e-5, batch=128)  # the paper's
    with pytest.raises(InputError, match=r"epochs must be at least 1 \(got 0\)"):
        Training(epochs=0)
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="learning_rate must be above 0"):
            Training(learning_rate=rate)
    with pytest.raises(InputError, match=r"must fill a batch of 128 \(got 5\)"):
        train(some_images(1, 5)[0], some_labels(1, 5)[0], 0, Training())


def test_a_trainer_without_torch_is_not_imported_with_the_package(tmp_path: Path) -> None:
    code = "import sys, capemix.evaluate; print('torch' in sys.modules, 'triton' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("soft", [False, True])
def test_no_class_is_predicted_that_does_not_exist(soft: bool) -> None:
    """The CNN has ten outputs; a model that has hardly been trained would use them all."""
    rng = np.random.default_rng(0)
    rows, labels = rng.random((12, 784)), np.arange(12) % 3
    truth = np.eye(10, dtype=np.float32)[labels] if soft else labels
    said = train_and_predict(
        rows, truth, rng.normal(size=(400, 784)) * 5, [1], Training(1, 1e-5, 4), CPU
    )
    assert set(said.ravel()) <= {0, 1, 2}
