"""Callbacks and trackers in the real trainers; each is skipped where its package is not installed."""

import json
from importlib.util import find_spec

import pytest

from traceops.capture.schedule import Schedule

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.skipif(find_spec("torch") is None, reason="no torch")]
SHORT = Schedule(skip_first=1, unprofiled=1, warmup=1, active=2)


@pytest.fixture(autouse=True, scope="module")
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


def test_the_profiler_of_torchtitan_is_built_from_its_config(tmp_path):
    pytest.importorskip("torchtitan.tools.profiler")
    from traceops.integrations.torchtitan import TraceopsProfiler

    config = TraceopsProfiler.Config(out=str(tmp_path / "run"), skip_first=1, unprofiled=1, warmup=1, active=2)
    with config.build(global_step=0, base_folder=str(tmp_path)) as profiler:
        for _ in range(6):
            torch.ones(3).sum()
            profiler.step()
    assert recorded(tmp_path / "run") == ("finished", 6, [3, 4], 1)
