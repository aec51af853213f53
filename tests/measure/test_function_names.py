"""What the name of a function says that the host is about."""

from types import SimpleNamespace

import pytest

from traceops.measure.host_places import stack_purposes

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
        (["_FitLoop.run", "_EvaluationLoop.run", "_DataFetcher.__next__"], "evaluation"),  # was data that comes late
        (["_FitLoop.run", "_TrainingEpochLoop.run"], None),
        (["main", "test"], "evaluation"),  # was nothing
        (["Trainer.train", "Trainer._test"], "evaluation"),
        (["run_val_epoch"], "evaluation"),
        (["test_training", "unit_test", "val_loader", "latest"], None),
    ],
)
def test_a_function_that_also_trains_logs_or_saves_is_no_evaluation(functions, says):
    frames = [SimpleNamespace(function=name, file=TRAINER, no_grad=False) for name in functions]
    observed = SimpleNamespace(frames=frames, stacks=[tuple(range(len(frames)))])
    assert stack_purposes(observed)[0].what == says


@pytest.mark.parametrize(
    "folder, says",
    [("/opt/torch/.venv/lib/python3.12", "evaluation"), ("/site-packages/torch", None), ("/usr/lib/torch", None)],
)
def test_a_virtual_environment_may_be_called_torch(folder, says):
    """Evaluations of the HF Trainer in /opt/torch/.venv had no cause."""
    inside = folder + ("/site-packages/transformers/trainer.py" if says else "/inference.py")
    frames = [SimpleNamespace(function="Trainer.evaluate", file=inside, no_grad=False)]
    assert stack_purposes(SimpleNamespace(frames=frames, stacks=[(0,)]))[0].what == says


CONTEXT = ("context_decorator.<locals>.decorate_context", "/site-packages/torch/utils/_contextlib.py")
CALL = ("Module._call_impl", "/site-packages/torch/nn/modules/module.py")
BACKWARD = ("_engine_run_backward", "/site-packages/torch/autograd/graph.py")
OWN = "/home/me/train.py"


def purposes(*stacks):
    """Of frames as (function, file), and a third where the line is in a block without gradients."""
    frames = [
        SimpleNamespace(function=name, file=file, no_grad=bool(block))
        for stack in stacks
        for name, file, *block in stack
    ]
    starts = [sum(map(len, stacks[:at])) for at in range(len(stacks))]
    numbers = [tuple(range(start, start + len(stack))) for start, stack in zip(starts, stacks, strict=True)]
    found = stack_purposes(SimpleNamespace(frames=frames, stacks=numbers))
    return [(one.what, None if one.frame is None else frames[one.frame].function) for one in found]


def test_a_model_that_is_called_in_a_function_decorated_with_no_grad():
    """nanoGPT's evaluation has a name that says nothing: nothing was told of it."""
    estimate = [("<module>", OWN), CONTEXT, ("estimate_loss", OWN), CALL, ("GPT.forward", OWN)]
    assert purposes(estimate) == [("inference", "estimate_loss")]
    assert purposes([("<module>", OWN), CONTEXT, ("update_average", OWN)]) == [(None, None)]  # calls no module
    named = [("<module>", OWN), CONTEXT, ("evaluate", OWN), CALL, ("GPT.forward", OWN)]
    assert purposes(named) == [("evaluation", "evaluate")]


def test_a_decorator_that_turns_gradients_on_or_an_optimizers_closure_is_training():
    closure = [("fit", OWN), CONTEXT, ("Closure.closure", "/lightning/closure.py"), CALL, ("Net.forward", OWN)]
    behind = [*closure[:3], BACKWARD]
    assert purposes(closure, behind) == [(None, None), (None, None)]
    lbfgs = [("fit", OWN), CONTEXT, ("LBFGS.step", "/torch/optim/lbfgs.py"), ("closure", OWN), CALL]
    assert purposes(lbfgs) == [(None, None)]
    own = [("fit", OWN), CONTEXT, ("SAM.step", OWN), CONTEXT, ("closure", OWN), CALL]
    assert purposes(own) == [(None, None)]


def test_a_model_that_is_called_in_a_block_without_gradients():
    """An evaluation at module level has no function, and no name: 61 % of a run were nothing that shows why."""
    module = ("<module>", OWN, "block")
    assert purposes([module, CALL, ("GPT.forward", OWN)]) == [("inference", "<module>")]
    assert purposes([module, ("update_average", OWN)]) == [(None, None)]
    trains = [("<module>", OWN), BACKWARD]
    assert purposes([module, CALL], trains) == [("inference", "<module>"), (None, None)]
    assert purposes([("SAM.step", OWN, "block"), CALL]) == [(None, None)]
    assert purposes([("<module>", OWN), ("evaluate", OWN, "block"), CALL]) == [("evaluation", "evaluate")]
