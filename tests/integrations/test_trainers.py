"""Callbacks in the real trainers, several trainings with one callback, and one rank in place of many."""

import json
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from traceops.capture.schedule import Schedule
from traceops.capture.settings import ENV
from traceops.core.errors import UsageError
from traceops.core.rank_files import effective_batches, ranks_replaced
from traceops.integrations.held_capture import HeldCapture, accumulate_more

SHORT = Schedule(skip_first=1, unprofiled=1, warmup=1, active=2)


@pytest.fixture(scope="module")
def _torch():
    """Loaded only where a test runs: every worker of pytest collects all of them."""
    global torch, Model, Rows
    import torch

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            return {"x": torch.full((4,), float(index)), "labels": torch.tensor(0.0)}

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(4, 1)

        def forward(self, x, labels=None):
            out = self.line(x).mean()
            return {"loss": (out - labels.mean()) ** 2}


def recorded(folder):
    run = json.loads((folder / "run.json").read_text())
    rank = run["ranks"][0]
    return rank["status"], rank["steps"], run["profiled_steps"], len(rank["traces"])


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("_torch")
@pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
def test_the_callback_of_hugging_face_counts_the_trainers_own_steps(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from traceops.integrations.huggingface import TraceopsCallback

    monkeypatch.chdir(tmp_path)
    arguments = transformers.TrainingArguments(
        output_dir="out", max_steps=6, per_device_train_batch_size=2, gradient_accumulation_steps=2, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    callback = TraceopsCallback(tmp_path / "run", schedule=SHORT)
    trainer = transformers.Trainer(model=Model(), args=arguments, train_dataset=Rows(), callbacks=[callback])
    trainer.train()
    assert trainer.state.global_step == 6
    assert recorded(tmp_path / "run") == ("finished", 6, [3, 4], 1)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("_torch")
@pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
def test_one_rank_accumulates_in_hugging_faces_trainer_and_ends_with_the_model_of_a_larger_batch(
    tmp_path, monkeypatch, capfd
):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from traceops.integrations.huggingface import TraceopsCallback

    monkeypatch.chdir(tmp_path)

    def train(accumulation, callbacks):
        torch.manual_seed(0)
        arguments = transformers.TrainingArguments(
            output_dir="out", num_train_epochs=2, per_device_train_batch_size=2, report_to=[], save_strategy="no",
            gradient_accumulation_steps=accumulation, use_cpu=True, disable_tqdm=True, learning_rate=1e-3, seed=5,
        )  # fmt: skip
        trainer = transformers.Trainer(model=Model(), args=arguments, train_dataset=Rows(), callbacks=callbacks)
        trainer.train()
        return trainer.state.global_step, trainer.state.max_steps, trainer.model.line.weight.tolist()

    meant = train(8, [])
    monkeypatch.setenv("TRACEOPS_FALLBACK_RANKS", "4")
    assert train(2, [TraceopsCallback(tmp_path / "run", schedule=SHORT)]) == meant
    assert meant[:2] == (8, 8)
    assert "gradient_accumulation_steps is 8 instead of 2" in capfd.readouterr().err


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("_torch")
@pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
def test_one_rank_accumulates_in_lightnings_trainer_once(tmp_path, monkeypatch, capfd):
    lightning = pytest.importorskip("lightning")
    from traceops.integrations.lightning import TraceopsCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.line = torch.nn.Linear(4, 1)

        def training_step(self, batch, index):
            return self.line(batch["x"]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    def train(accumulation, callbacks):
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=1, accumulate_grad_batches=accumulation, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
        )  # fmt: skip
        module = Module()
        trainer.fit(module, torch.utils.data.DataLoader(Rows(), batch_size=2))
        trainer.fit_loop.max_epochs = 2
        trainer.fit(module, torch.utils.data.DataLoader(Rows(), batch_size=2))
        return trainer.global_step, trainer.accumulate_grad_batches, module.line.weight.tolist()

    meant = train(8, [])
    monkeypatch.setenv("TRACEOPS_FALLBACK_RANKS", "4")
    assert train(2, [TraceopsCallback(tmp_path / "run", schedule=SHORT, overwrite=True)]) == meant
    assert meant[:2] == (8, 8)
    assert capfd.readouterr().err.count("accumulate_grad_batches is 8 instead of 2") == 1


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("_torch")
@pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
@pytest.mark.parametrize("fails", [False, True])
def test_the_callback_of_lightning_counts_optimizer_steps_and_keeps_what_an_error_leaves(tmp_path, fails):
    lightning = pytest.importorskip("lightning")
    from traceops.integrations.lightning import TraceopsCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(4, 1)

        def training_step(self, batch, index):
            if fails and index == 11:
                raise ValueError("planted")
            return self.line(batch["x"]).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_steps=6, accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[TraceopsCallback(tmp_path / "run", schedule=SHORT)],
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2)
    if fails:
        with pytest.raises(ValueError, match="planted"):
            trainer.fit(Module(), loader)
        assert recorded(tmp_path / "run") == ("failed", 5, [3, 4], 1)
    else:
        trainer.fit(Module(), loader)
        assert recorded(tmp_path / "run") == ("finished", 6, [3, 4], 1)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("_torch")
@pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
def test_the_tracker_of_accelerate_profiles_from_init_to_end(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    from traceops.integrations.accelerate import TraceopsTracker

    accelerator = accelerate.Accelerator(cpu=True, log_with=TraceopsTracker(tmp_path / "run", schedule=SHORT))
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.init_trackers("mine", config={"lr": 1e-6})
    for _ in range(6):
        accelerator.backward(model(torch.ones(2, 4), torch.zeros(2))["loss"])
        optimizer.step()
        optimizer.zero_grad()
    accelerator.log({"loss": 1.0}, step=6)
    accelerator.end_training()
    assert recorded(tmp_path / "run") == ("finished", 6, [3, 4], 1)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("_torch")
@pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
def test_the_profiler_of_torchtitan_is_built_from_its_config(tmp_path):
    pytest.importorskip("torchtitan.tools.profiler")
    from traceops.integrations.torchtitan import TraceopsProfiler

    config = TraceopsProfiler.Config(out=str(tmp_path / "run"), skip_first=1, unprofiled=1, warmup=1, active=2)
    with config.build(global_step=0, base_folder=str(tmp_path)) as profiler:
        for _ in range(6):
            torch.ones(3).sum()
            profiler.step()
    assert recorded(tmp_path / "run") == ("finished", 6, [3, 4], 1)


@pytest.fixture
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


@pytest.mark.usefixtures("eight_ranks")
def test_it_is_multiplied_once_and_the_batches_are_told(capsys):
    args = arguments()
    assert [multiplied(args), multiplied(args)] == [16, 16]
    assert capsys.readouterr().err == (
        "traceops: fallback: one rank in place of 8: gradient_accumulation_steps is 16 instead of 2\n"
        "traceops:            ranks  batch  accumulation  samples a step\n"
        "traceops: all ranks      8      4             2              64\n"
        "traceops: one rank       1      4            16              64\n"
    )


@pytest.mark.usefixtures("eight_ranks")
def test_a_batch_that_nobody_knows_yet_is_not_made_up():
    assert [line.split() for line in effective_batches(8, 2, None)] == [
        ["ranks", "accumulation", "batches", "a", "step"],
        ["all", "ranks", "8", "2", "16"],
        ["one", "rank", "1", "16", "16"],
    ]


@pytest.mark.usefixtures("eight_ranks")
def test_nothing_is_done_or_said_where_all_ranks_run(monkeypatch, capsys):
    monkeypatch.delenv("TRACEOPS_FALLBACK_RANKS")
    assert multiplied(arguments(), obstacle="any") == 2
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("eight_ranks")
def test_a_script_that_reads_the_variable_itself_is_left_alone_unless_asked(eight_ranks, capsys):
    eight_ranks.write_text('ranks = os.environ.get("TRACEOPS_FALLBACK_RANKS", 1)')
    assert multiplied(arguments()) == 2
    assert f"stays 2, because {eight_ranks} reads TRACEOPS_FALLBACK_RANKS itself" in capsys.readouterr().err
    assert multiplied(arguments(), asked=True) == 16
    eight_ranks.write_text("")
    assert multiplied(arguments(), asked=False) == 2


@pytest.mark.usefixtures("eight_ranks")
@pytest.mark.parametrize("value", ["0", "-2", "two", "1.5"])
def test_a_variable_that_counts_no_ranks_is_refused(value):
    with pytest.raises(UsageError, match=f"TRACEOPS_FALLBACK_RANKS={value}: give the number of ranks"):
        ranks_replaced({"TRACEOPS_FALLBACK_RANKS": value})


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("_torch")
@pytest.mark.usefixtures("eight_ranks")
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


HELD_SHORT = Schedule(skip_first=0, unprofiled=1, warmup=0, active=1)


def fit(held, steps=3):
    held.open({"trainer": "mine"})
    for _ in range(steps):
        held.step(1)
    held.close()


def steps_of(folder):
    return json.loads((folder / "rank_0" / "manifest.json").read_text())["steps"]


@pytest.mark.torch
def test_each_training_gets_a_folder(tmp_path):
    held = HeldCapture(tmp_path / "run", HELD_SHORT, {"observe": False})
    for steps in (3, 4, 5):
        fit(held, steps)
    assert [steps_of(tmp_path / name) for name in ("run", "run-2", "run-3")] == [3, 4, 5]


@pytest.mark.torch
def test_a_second_training_that_has_no_place_trains_on(tmp_path, capsys):
    fit(HeldCapture(tmp_path / "run-2", HELD_SHORT, {"observe": False}))
    held = HeldCapture(tmp_path / "run", HELD_SHORT, {"observe": False})
    fit(held)
    fit(held, 5)
    assert steps_of(tmp_path / "run-2") == 3
    assert "training 2 of this callback is not recorded" in capsys.readouterr().err
    with pytest.raises(UsageError, match="holds another run"):
        fit(HeldCapture(tmp_path / "run", HELD_SHORT, {}))


@pytest.mark.torch
def test_under_the_launcher_the_first_is_kept(tmp_path, monkeypatch, capsys):
    settings = {"out": str(tmp_path / "run"), "launched": True, "observe": False}
    monkeypatch.setenv(ENV, json.dumps(settings))
    held = HeldCapture(None, HELD_SHORT, {})
    fit(held)
    fit(held, 7)
    assert steps_of(tmp_path / "run") == 3
    assert "the run folder has the first" in capsys.readouterr().err
