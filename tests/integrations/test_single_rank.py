"""Under --fallback single the trainers' callbacks accumulate for the ranks that are not there."""

import sys
from types import SimpleNamespace

import pytest

from traceops.core.errors import UsageError
from traceops.core.rank_files import effective_batches, ranks_replaced
from traceops.integrations.held_capture import accumulate_more


@pytest.fixture(autouse=True)
def eight_ranks(monkeypatch, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("train()")
    monkeypatch.setenv("TRACEOPS_FALLBACK_RANKS", "8")
    monkeypatch.setattr(sys, "argv", [str(script)])
    return script


def arguments(**others):
    return SimpleNamespace(gradient_accumulation_steps=2, train_batch_size=4, **others)


def multiplied(args, **options):
    accumulate_more(args, "gradient_accumulation_steps", **{"asked": None, "batch": 4, **options})
    return args.gradient_accumulation_steps


def test_it_is_multiplied_once_and_the_batches_are_told(capsys):
    args = arguments()
    assert [multiplied(args), multiplied(args)] == [16, 16]
    assert capsys.readouterr().err == (
        "traceops: fallback: one rank in the place of 8: gradient_accumulation_steps is 16 instead of 2\n"
        "traceops:            ranks  batch  accumulation  samples a step\n"
        "traceops: all ranks      8      4             2              64\n"
        "traceops: one rank       1      4            16              64\n"
    )


def test_a_batch_that_nobody_knows_yet_is_not_made_up():
    assert [line.split() for line in effective_batches(8, 2, None)] == [
        ["ranks", "accumulation", "batches", "a", "step"],
        ["all", "ranks", "8", "2", "16"],
        ["one", "rank", "1", "16", "16"],
    ]


def test_nothing_is_done_or_said_where_all_ranks_run(monkeypatch, capsys):
    monkeypatch.delenv("TRACEOPS_FALLBACK_RANKS")
    assert multiplied(arguments(), obstacle="any") == 2
    assert capsys.readouterr().err == ""


def test_a_script_that_reads_the_variable_itself_is_left_alone_unless_asked(eight_ranks, capsys):
    eight_ranks.write_text('ranks = os.environ.get("TRACEOPS_FALLBACK_RANKS", 1)')
    assert multiplied(arguments()) == 2
    assert f"stays 2, because {eight_ranks} reads TRACEOPS_FALLBACK_RANKS itself" in capsys.readouterr().err
    assert multiplied(arguments(), asked=True) == 16
    eight_ranks.write_text("")
    assert multiplied(arguments(), asked=False) == 2


@pytest.mark.parametrize("value", ["0", "-2", "two", "1.5"])
def test_a_variable_that_counts_no_ranks_is_refused(value):
    with pytest.raises(UsageError, match=f"TRACEOPS_FALLBACK_RANKS={value}: give the number of ranks"):
        ranks_replaced({"TRACEOPS_FALLBACK_RANKS": value})


@pytest.mark.torch
@pytest.mark.slow
class TestHuggingFace:
    """With transformers' own callback handler; its Trainer needs accelerate too, and trains in test_trainers.py."""

    @pytest.fixture
    def callback(self):
        pytest.importorskip("transformers")
        from traceops.integrations.huggingface import TraceopsCallback

        return TraceopsCallback()

    def test_the_trainers_handler_reaches_it_as_the_trainer_is_made(self, callback, capsys):
        from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

        args = arguments()
        CallbackHandler([callback], None, None, None, None).on_init_end(args, TrainerState(), TrainerControl())
        assert args.gradient_accumulation_steps == 16
        assert "one rank       1      4            16              64" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("others", "told"),
        [
            ({"deepspeed_plugin": object()}, "stays 2: DeepSpeed has read it; multiply in the script"),
            ({"accelerator_config": SimpleNamespace(split_batches=True)}, "stays 2: with split_batches"),
        ],
    )
    def test_where_more_would_be_wrong_it_stays_and_is_told(self, callback, others, told, capsys):
        args = arguments(**others)
        callback.on_init_end(args, None, None)
        assert args.gradient_accumulation_steps == 2 and told in capsys.readouterr().err

    def test_a_callback_that_came_too_late_says_so(self, callback, monkeypatch, capsys):
        monkeypatch.setattr(callback._held, "open", lambda training: None)
        args = arguments()
        callback.on_train_begin(args, SimpleNamespace(max_steps=3), None)
        assert args.gradient_accumulation_steps == 2
        assert "stays 2: the callback was added after the Trainer was made" in capsys.readouterr().err
