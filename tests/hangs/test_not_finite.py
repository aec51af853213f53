"""Programs that ended themselves because of a number: which number, and whether it was NaN, inf, or a loss scale."""

from __future__ import annotations

from pathlib import Path

import pytest
from quiet import is_quiet

from traceops.hangs.crashes import says_not_finite, what_is_not_finite
from traceops.hangs.diagnose import diagnose
from traceops.report.hang_seen import seen_lines
from traceops.report.hang_text import hang_sentence
from traceops.rules.failures import advice_of

DATA = Path(__file__).parents[1] / "data" / "crash_logs"
# File: cause, ranks, what is true, and what the evidence has behind the message itself.
PUBLIC = {
    "loss_scale_deepspeed": ("loss_scale", (), "until the loss scale was at its minimum", "scale: 0, reducing to 0"),
    "loss_scale_fairseq": ("loss_scale", (), "until the loss scale was at its minimum", "scale to: 0.0001220703125"),
    "loss_inf": ("nan_loss", (), "because the loss is inf: Loss is inf, stopping training", None),
    "loss_infinite_or_nan": ("nan_loss", (), "because the loss is not finite (inf or NaN), at train_loop", None),
    "nan_grad_norm": ("nan_loss", (2,), "because the norm of gradients is NaN: RuntimeError: Rank 2", None),
}
OVERFLOW = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}\n"
GAVE_UP = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 41, in step\n    engine.step()\n'
    "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n"
)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_log_says_which_number_it_was(name: str) -> None:
    cause, ranks, said, last = PUBLIC[name]
    (root,) = (diagnosis := diagnose(DATA / f"{name}.txt")).roots
    assert (root.rule, root.cause, root.ranks) == ("TO-E005", cause, ranks)
    assert said in hang_sentence(diagnosis) and "the loss is NaN" not in hang_sentence(diagnosis)
    assert last is None or root.evidence[-1][1].endswith(last)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Loss is nan, stopping training", "the loss is NaN"),
        ("ValueError: train_loss=nan at step 3", "the loss is NaN"),
        ("Loss is -inf, stopping training", "the loss is inf"),
        ("AssertionError: non-finite loss: inf", "the loss is inf"),
        ("AssertionError: loss is not finite", "the loss is not finite (inf or NaN)"),
        ("ValueError: the loss is not finite: tensor(nan, device='cuda:0')", "the loss is NaN"),
        ("WARNING: non-finite loss, ending training  tensor([nan, nan, nan, nan])", "the loss is NaN"),
        ("AssertionError: Rank 3: found NaN in local grad norm in backwards pass", "the norm of gradients is NaN"),
        ("AssertionError: found Inf in local forward loss calculation", "the loss is inf"),
        ("RuntimeError: NaN or Inf found in gradients", "gradients are not finite (inf or NaN)"),
        (
            "RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot",
            "the norm of gradients is not finite (inf or NaN)",
        ),
    ],
)
def test_no_more_is_said_than_the_message_says(text: str, said: str) -> None:
    assert says_not_finite(text) and what_is_not_finite(text) == said


@pytest.mark.parametrize(
    "text", ["ValueError: loss_scale must not be inf", "ValueError: unknown loss 'infonce'", "loss scale: inf"]
)
def test_a_loss_scale_and_a_name_are_no_loss(text: str) -> None:
    assert not says_not_finite(text)


def test_the_last_overflows_are_the_evidence_and_those_of_an_earlier_start_are_not(tmp_path: Path) -> None:
    skipped = "".join(OVERFLOW.format(2 << k, 1 << k) for k in range(6, -1, -1))
    log = tmp_path / "train.log"
    log.write_text(skipped + GAVE_UP)
    (root,) = diagnose(log).roots
    assert [text[-25:] for _, text in root.evidence[1:]] == [
        "loss scale: 8, reducing to 4"[-25:], "loss scale: 4, reducing to 2"[-25:], "loss scale: 2, reducing to 1"[-25:]
    ]  # fmt: skip
    assert [where.rpartition(":")[2] for where, _ in root.evidence] == ["8", "5", "6", "7"]
    assert "bf16 in place of fp16" in advice_of(root) and "loss is finite is not told" in advice_of(root)
    log.write_text(GAVE_UP)  # rank 0 alone tells of overflows
    assert len(diagnose(log).roots[0].evidence) == 1


def test_overflows_after_which_the_training_goes_on_are_no_trouble(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"step 1\n{OVERFLOW.format(2, 1)}step 2\n{OVERFLOW.format(1, 1)}step 3\n")
    assert is_quiet(diagnose(log))


def test_a_scaler_whose_program_went_on_is_not_its_end(tmp_path: Path) -> None:
    """A program may catch what DeepSpeed raises."""
    log = tmp_path / "train.log"
    steps = "".join(f"step {n}/900 loss 2.1\n" for n in range(20, 800))
    log.write_text(f"step 19/900 loss 2.1\n{GAVE_UP}{steps}")
    diagnosis = diagnose(log)
    assert not diagnosis.roots and seen_lines(diagnosis)
