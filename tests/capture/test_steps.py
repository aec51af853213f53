import sys

import pytest

from traceops.capture.guard import Guard
from traceops.capture.steps import StepDetector, on_training_step


@pytest.mark.parametrize(
    ("fired", "ends"),
    [
        ("aaaa", "1111"),  # one optimizer
        ("abababab", "10010101"),  # generator and discriminator: the step ends after the second
        ("abcabcabc", "100001001"),  # an optimizer a parameter
        ("aabbbb", "110111"),  # another training phase takes over
        ("abaaa", "10011"),  # the second one is skipped by a gradient scaler from now on
    ],
)
def test_several_optimizers_make_one_step(fired, ends):
    detector = StepDetector()
    assert "".join(str(int(detector.stepped(ord(name)))) for name in fired) == ends


@pytest.mark.torch
@pytest.mark.parametrize("enabled", [True, False])
def test_an_iteration_that_a_gradient_scaler_skips_is_a_step(enabled):
    torch = pytest.importorskip("torch")
    module = sys.modules["torch.amp.grad_scaler"]
    before, ends, errors = module.GradScaler.update, [], []
    stop = on_training_step(lambda: ends.append(1), Guard(lambda *what: errors.append(what)))
    try:
        weight = torch.zeros(2, requires_grad=True)
        optimizers = [torch.optim.SGD([weight], lr=0.1), torch.optim.SGD([weight], lr=0.1)]
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0, enabled=enabled)
        for factor in (1.0, float("inf"), 1.0, float("inf"), float("inf"), 1.0):
            scaler.scale(weight.sum() * factor).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            weight.grad = None
        assert len(ends) == 6
    finally:
        stop()
    assert not errors and module.GradScaler.update is before
