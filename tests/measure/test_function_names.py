"""What the name of a function says that the host is about."""

from types import SimpleNamespace

import pytest

from traceops.measure.host_places import what_for

TRAINER = "/site-packages/transformers/trainer.py"


@pytest.mark.parametrize(
    "functions, says",
    [
        (["Trainer.train", "Trainer._maybe_log_save_evaluate", "Trainer.log"], None),  # was an evaluation
        (["Trainer._maybe_log_save_evaluate", "Trainer._save_checkpoint"], "checkpoint"),
        (["train", "evaluate_and_save", "save_checkpoint"], "checkpoint"),  # was an evaluation
        (["train", "evaluate_and_save", "evaluate"], "evaluation"),
        (["train", "eval_and_log"], None),
        (["Trainer._maybe_log_save_evaluate", "Trainer._evaluate", "Trainer.evaluate"], "evaluation"),
        (["train_and_evaluate", "step"], None),
        (["train_and_evaluate", "validate"], "evaluation"),
        (["train_one_epoch.<locals>.evaluate"], "evaluation"),
        (["run_eval"], "evaluation"),
        (["_EvaluationLoop.run", "do_validation"], "evaluation"),
        (["my_val_loop"], "evaluation"),
        (["evaluate_model"], "evaluation"),
        (["log_eval_loss"], None),
        (["retrieval", "Interval.evaluated"], None),
    ],
)
def test_a_function_that_also_trains_logs_or_saves_is_no_evaluation(functions, says):
    frames = [SimpleNamespace(function=name, file=TRAINER) for name in functions]
    observed = SimpleNamespace(frames=frames, stacks=[tuple(range(len(frames)))])
    assert what_for(observed, 0) == says
