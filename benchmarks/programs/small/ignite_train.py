"""PyTorch-Ignite: idist.Parallel starts the ranks; accumulation over two batches, an evaluator after each epoch."""

import ignite.distributed as idist
import torch
from common import CUDA, STEPS, blocks, samples, tell
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy


def training(_local_rank: int) -> None:
    """Two epochs in each rank."""
    device = idist.device()
    model = idist.auto_model(blocks())
    optimizer = idist.auto_optim(torch.optim.AdamW(model.parameters(), lr=1e-3))
    loss = torch.nn.CrossEntropyLoss()
    loader = idist.auto_dataloader(samples(16 * STEPS), batch_size=16)
    trainer = create_supervised_trainer(model, optimizer, loss, device, gradient_accumulation_steps=2)
    evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()}, device)
    check = idist.auto_dataloader(samples(64), batch_size=16)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(check))
    trainer.run(loader, max_epochs=2)
    if idist.get_rank() == 0:
        tell(trainer.state.iteration // 2, model)


if __name__ == "__main__":
    with idist.Parallel(backend="nccl" if CUDA else "gloo", nproc_per_node=2) as parallel:
        parallel.run(training)
