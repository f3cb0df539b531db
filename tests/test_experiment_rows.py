"""Training rows of the reproduction have the product's laws, though their randomness is torch's."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from capemix.accounting.gaussian import kept_probability
from capemix.data import LabeledRows
from capemix.evaluate.cnn import Training
from capemix.methods.mixing.planning import plan_mixtures
from capemix.randomness.source import SeededSource
from capemix.sums.steps import SiteZScore
from capemix_research.experiments import preparation
from capemix_research.experiments import rows as made
from capemix_research.experiments.rows import Records, training_rows
from capemix_research.experiments.settings import TABLES, Setting
from releasing import by_class

CLASSES, OWN, WIDTH, SAMPLES = 10, 40, 3, 20_000
TRUE = np.repeat(np.arange(CLASSES), SAMPLES // CLASSES)
SIGMAS = 5.0


def records() -> Records:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), OWN)
    features = rng.normal(size=(len(labels), WIDTH)) + np.cos(labels)[:, None]
    test = torch.tensor(features[:20]).float()
    return Records(
        torch.tensor(features).float(), torch.tensor(labels), test, torch.tensor(labels[:20])
    )


def product_rows(setting: Setting, noise: float, **asked: Any) -> tuple[np.ndarray, np.ndarray]:
    """The same by the product's own path, sites split as the experiment splits them."""
    data = records()
    site = made._stratified(data.labels, setting.sites, seed=0).numpy()
    parts = [
        LabeledRows(
            features=data.train.numpy()[site == s].astype(np.float64),
            labels=data.labels.numpy()[site == s],
            classes=tuple(range(CLASSES)),
            feature_names=tuple("abc"),
        )
        for s in range(setting.sites)
    ]
    plan = plan_mixtures(
        width=WIDTH,
        class_sizes=(OWN,) * CLASSES,
        samples=setting.samples,
        mixture=setting.mixture,
        clip=setting.clip,
        normalise=SiteZScore(),
        accountant="paper",
        sites=setting.sites,
        noise=noise,
        **asked,
    )
    made_rows = by_class(plan, parts, SeededSource(3))
    return np.asarray(made_rows.features), np.asarray(made_rows.labels)


def distance(a: np.ndarray, b: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """In standard errors: the worst mean of a group's column, and the variance within groups."""
    worst, over, under, weight = 0.0, 0.0, 0.0, 0
    for k in np.unique(groups):
        x, y = a[groups == k], b[groups == k]
        error = np.sqrt(x.var(0) / len(x) + y.var(0) / len(y))
        worst = max(worst, float(np.max(np.abs(x.mean(0) - y.mean(0)) / error)))
        over, under = over + float(x.var(0).sum()), under + float(y.var(0).sum())
        weight += x.size
    return worst, abs(math.log(over / under)) / math.sqrt(4 / weight)


BASE = Setting("mnist", "central", 1, 4, 10.0, samples=SAMPLES)
METHODS: dict[str, tuple[Setting, dict[str, Any]]] = {
    "central": (BASE, {"scheme": "central"}),
    "joint": (replace(BASE, method="joint", sites=4), {"scheme": "cape"}),
    "algorithm1": (
        replace(BASE, method="algorithm1", sites=4, site_noise="appendix"),
        {"scheme": "cape", "form": "algorithm1", "site_noise": "appendix"},
    ),
    "conventional": (
        replace(BASE, method="conventional", sites=4, site_noise="sites"),
        {"scheme": "conventional", "site_noise": "sites"},
    ),
    "conventional, a site by itself": (
        replace(BASE, method="conventional", sites=4, accountant="sound", site_noise="own"),
        {"scheme": "conventional", "site_noise": "sites", "selection": "poisson"},
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_rows_have_the_products_mean_variance_and_labels(name: str) -> None:
    setting, asked = METHODS[name]
    noise = 0.3
    theirs, their_labels = product_rows(setting, noise, **asked)
    ours, our_labels = (t.numpy() for t in training_rows(setting, noise, records(), 0))
    assert ours.shape == theirs.shape == (SAMPLES, WIDTH)
    mean, variance = distance(ours, theirs, TRUE)
    assert mean < SIGMAS
    assert variance < SIGMAS
    right = [float((labels == TRUE).mean()) for labels in (our_labels, their_labels)]
    assert right[0] == pytest.approx(right[1], abs=SIGMAS * math.sqrt(0.5 / SAMPLES))


@pytest.mark.parametrize("name", METHODS)
def test_rows_with_noise_a_tenth_off_are_told_apart(name: str) -> None:
    setting, asked = METHODS[name]
    theirs, _ = product_rows(setting, 0.3, **asked)
    off = training_rows(setting, 0.33, records(), 0)[0].numpy()
    assert distance(off, theirs, TRUE)[1] > SIGMAS


@pytest.mark.parametrize("name", METHODS)
def test_a_label_that_is_not_noised_is_the_class_even_of_an_empty_draw(name: str) -> None:
    setting, asked = METHODS[name]
    setting = replace(setting, mixture=1, labels_noised=False)
    _, theirs = product_rows(setting, 0.3, label_noise=False, **asked)
    _, ours = training_rows(setting, 0.3, records(), 0)
    assert np.array_equal(theirs, TRUE)
    assert np.array_equal(ours.numpy(), TRUE)
    bare = training_rows(setting, 0.0, records(), 0)[0]
    empty = float((bare == 0).all(1).float().mean())
    poisson = setting.method == "joint" or setting.accountant == "sound"
    pools = 4 if setting.method == "conventional" else 1
    expected = (1 - pools / OWN) ** OWN if poisson else 0.0
    assert empty == pytest.approx(expected, abs=SIGMAS * math.sqrt(0.25 / SAMPLES))


def test_an_empty_draw_has_no_label_to_noise() -> None:
    """Where labels are noised it is the noise alone that decodes: right once in ten."""
    setting = replace(METHODS["joint"][0], mixture=1)
    labels = training_rows(setting, 1e-3, records(), 0)[1].numpy()
    empty = (1 - 1 / OWN) ** OWN
    right = float((labels == TRUE).mean())
    assert right == pytest.approx(1 - 0.9 * empty, abs=SIGMAS * math.sqrt(0.25 / SAMPLES))


def test_test_images_are_normalised_by_the_training_images_and_clipped() -> None:
    data = records()
    far = Records(data.train, data.labels, 3.0 * data.test + 1.0, data.test_labels)
    train, test = (t.double().numpy() for t in (far.train, far.test))
    scores = (test - train.mean(0)) / train.std(0)
    norms = np.linalg.norm(scores, axis=1, keepdims=True)
    assert norms.min() < 4.0 < norms.max()
    expected = scores / np.maximum(1.0, norms / 4.0)
    assert far.test_rows(4.0).numpy() == pytest.approx(expected, abs=1e-4)


def test_averages_are_not_central_mixtures() -> None:
    """Without noise their variance is S times smaller, which is erratum 2."""
    central = training_rows(BASE, 0.0, records(), 0)[0].numpy()
    average = training_rows(METHODS["conventional"][0], 0.0, records(), 0)[0].numpy()
    assert distance(average, central, TRUE)[1] > SIGMAS


def test_dp_mix_has_the_products_law() -> None:
    setting = replace(BASE, method="dp-mix")
    theirs, their_labels = product_rows(setting, 0.2, scheme="central", pool="all")
    ours, our_labels = (t.numpy() for t in training_rows(setting, 0.2, records(), 0))
    one = np.zeros(SAMPLES, dtype=int)
    assert max(distance(ours, theirs, one)) < SIGMAS
    shares = [np.bincount(labels, minlength=10) / SAMPLES for labels in (our_labels, their_labels)]
    assert np.abs(shares[0] - shares[1]).max() < SIGMAS * math.sqrt(0.2 / SAMPLES)
    off = training_rows(setting, 0.22, records(), 0)[0].numpy()
    assert distance(off, theirs, one)[1] > SIGMAS


@pytest.mark.parametrize("method", ["local-perturbation", "random-projection"])
def test_a_record_by_record_release_noises_rows_and_answers_labels_at_random(method: str) -> None:
    data = records()
    many = Records(data.train.repeat(50, 1), data.labels.repeat(50), data.test, data.test_labels)
    setting = Setting("mnist", method, 1, 0, 4.0, accountant="gaussian")
    clean = training_rows(replace(setting, method="real"), 0.0, many, 0)[0]
    rows, told = training_rows(setting, 0.5, many, 0)
    assert rows.shape == clean.shape
    kept = float((told == many.labels).float().mean())
    expected = kept_probability(2.0, CLASSES)
    assert kept == pytest.approx(expected, abs=SIGMAS * math.sqrt(0.25 / len(told)))
    added = (rows - clean).numpy()
    if method == "local-perturbation":
        assert added.std() == pytest.approx(0.5, rel=SIGMAS / math.sqrt(2 * added.size))
    assert np.abs(added.mean(0)).max() < SIGMAS * added.std() / math.sqrt(len(added)) + 0.05


def test_fewer_rows_than_records_are_a_random_part_of_them() -> None:
    setting = Setting("mnist", "local-perturbation", 1, 0, 40.0, 100, accountant="gaussian")
    rows, told = training_rows(setting, 0.0, records(), 0)
    whole = training_rows(replace(setting, method="real"), 0.0, records(), 0)[0]
    assert rows.shape == (100, WIDTH)
    apart = torch.cdist(rows, whole)
    assert float(apart.min(1).values.max()) < 1e-3
    assert len(apart.argmin(1).unique()) == 100
    assert len(told.unique()) == CLASSES


def test_fixed_draws_take_exactly_l_records_and_all_alike() -> None:
    part = made._fixed(8_000, 20, 4, torch.Generator().manual_seed(0))
    assert ((part > 0).sum(1) == 4).all()
    assert torch.allclose(part.sum(1), torch.ones(8_000))
    often = (part > 0).float().mean(0)
    assert float((often - 0.2).abs().max()) < SIGMAS * math.sqrt(0.16 / 8_000)


def test_poisson_draws_take_l_records_on_average_with_a_binomial_spread() -> None:
    count = (made._poisson(20_000, 20, 4, torch.Generator().manual_seed(0)) > 0).sum(1).double()
    assert float(count.mean()) == pytest.approx(4.0, abs=SIGMAS * math.sqrt(3.2 / 20_000))
    assert float(count.var()) == pytest.approx(3.2, rel=SIGMAS * math.sqrt(2 / 20_000))


def test_sites_get_even_shares_of_every_class_by_the_seed_alone() -> None:
    labels = records().labels
    site = made._stratified(labels, 4, seed=1)
    for k in range(CLASSES):
        assert torch.bincount(site[labels == k]).tolist() == [OWN // 4] * 4
    assert torch.equal(site, made._stratified(labels, 4, seed=1))
    assert not torch.equal(site, made._stratified(labels, 4, seed=2))


def test_rows_are_the_seeds_and_no_two_settings_share_them() -> None:
    again = [training_rows(BASE, 0.3, records(), seed)[0] for seed in (0, 0, 1)]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], again[2])
    other = training_rows(replace(BASE, accountant="printed"), 0.3, records(), 0)[0]
    assert not torch.equal(again[0], other)


def test_every_setting_comes_back_from_its_text() -> None:
    names = list(Setting.__dataclass_fields__)
    every = [setting for table in TABLES.values() for setting in table()]
    for setting in every:
        assert Setting.from_text(dict(zip(names, setting.text(), strict=True))) == setting
    assert len({setting.text() for setting in every}) == len(set(every))


def test_images_are_tested_as_trained_by_their_own_scale_and_unclipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Classes that differ in a corner are told apart, whichever way images are prepared."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % CLASSES
    images = torch.rand(400, 784, generator=generator)
    images[torch.arange(400), labels * 30] += 20.0
    data = Records(images, labels, images[:100], labels[:100])
    as_trained, own, unclipped = preparation.tests_of(data, made.by_all_pixels, 1.0)
    assert torch.equal(as_trained, made.clipped(unclipped, 1.0))
    assert float(as_trained.norm(dim=1).max()) <= 1.0001 < float(unclipped.norm(dim=1).max())
    assert abs(float(made.by_all_pixels(data.test, data.test).mean())) < 1e-5
    assert float(own.norm(dim=1).max()) <= 1.0001
    monkeypatch.setattr(preparation, "MIXTURES", (2,))
    monkeypatch.setitem(preparation.TRAINED, "small", (made.by_all_pixels, 28.0, 1280))
    found = list(preparation.accuracies(data, "small", 0, Training(epochs=4, learning_rate=1e-3)))
    assert [tested for tested, _, _ in found] == list(preparation.TESTED)
    assert all(mixture == 2 and accuracy > 90.0 for _, mixture, accuracy in found[:2])
