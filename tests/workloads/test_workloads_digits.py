"""The digits workload: its data, a clean pair of runs, and its faults."""

import pytest
import torch
from workload_recording import FakeAudit, diverging_pair, first_difference, record_once

from detaudit.core.errors import UsageError
from detaudit.workloads.digits import FAULTS, DigitNet, Training
from detaudit.workloads.digits_data import NAMES, Digits, load_images, numbered
from detaudit.workloads.faults import parse_faults
from detaudit.workloads.launch import Options, prepare

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def record(inject="", steps=4, **more):
    options = Options(steps=steps, faults=parse_faults(inject, FAULTS), **more)
    prepare(options)
    training = Training(options)
    audit = FakeAudit(training.net, training.optimizer)
    training.epochs(audit)
    return audit.steps


def test_the_data_are_the_real_digits():
    images, names = load_images()
    assert images.shape == (1797, 8, 8) and images.min() == 0 and images.max() == 16
    assert names[:10] == list(NAMES)


def test_classes_are_numbered_as_they_come():
    assert numbered(["b", "a", "b"]) == {"b": 0, "a": 1}


def test_a_shift_moves_empty_pixels_in():
    image = torch.arange(1, 65).view(1, 8, 8)
    down = Digits(image, [0], lambda: (-1, 0))[0][0]
    assert (down[0] == 0).all() and torch.equal(down[1:], image[0, :-1])


def test_the_racing_gather_looks_up_the_same_vectors():
    torch.manual_seed(0)
    net = DigitNet().eval()
    torch.nn.init.normal_(net.levels)
    images = load_images()[0][:5]
    clean = net(images)
    net.racing = True
    torch.testing.assert_close(net(images), clean)


def test_a_clean_run_is_the_same_twice():
    assert first_difference(record(), record()) is None


def test_an_unseeded_augmentation_shows_in_the_batch():
    first, second = record("numpy-augment", steps=2), record("numpy-augment", steps=2)
    assert first_difference(first, second) == (0, "checksums.levels")


def test_a_gather_race_shows_in_its_gradient():
    pair = diverging_pair(lambda: record("gather-race", steps=8))
    assert first_difference(*pair)[1] == "grad.levels"


@pytest.mark.parametrize("inject, batch", [("gather-race", 127), ("", 1438)])
def test_a_batch_that_does_not_fit_is_refused(inject, batch):
    with pytest.raises(UsageError, match=f"--batch {batch}"):
        Training(Options(batch=batch, faults=parse_faults(inject, FAULTS)))


def runs(directory, *options, hash_seeds=("random", "random")):
    out = directory / "run.json"
    return [record_once(out, "digits", *options, env={"PYTHONHASHSEED": seed})[0] for seed in hash_seeds]


@pytest.mark.slow
def test_fresh_processes_agree(tmp_path):
    assert first_difference(*runs(tmp_path, "--steps", "25")) is None


@pytest.mark.slow
def test_set_order_shows_in_the_labels(tmp_path):
    pair = runs(tmp_path, "--steps", "2", "--inject", "set-order", hash_seeds=("1", "2"))
    assert first_difference(*pair) == (0, "checksums.labels")


@pytest.mark.slow
def test_a_timed_evaluation_shows_in_the_generator(tmp_path):
    pair = runs(tmp_path, "--steps", "60", "--inject", "timed-eval")
    assert first_difference(*pair)[1] == "checksums.torch_rng"


@pytest.mark.slow
def test_a_late_fault_of_the_data_waits_for_the_next_epoch(tmp_path):
    pair = runs(tmp_path, "--steps", "24", "--inject", "late:15:numpy-augment")
    assert first_difference(*pair) == (22, "checksums.levels")
