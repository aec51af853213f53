import pytest

from traceops.capture.steps import StepDetector


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
