"""accelerate: a BERT of random weights, bf16, padding mask, scheduler, metrics gathered."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


class Rows(Dataset):
    def __len__(s):
        return 4000

    def __getitem__(s, i):
        g = torch.Generator().manual_seed(i)
        return {
            "input_ids": torch.randint(0, 30000, (256,), generator=g),
            "attention_mask": torch.ones(256, dtype=torch.long),
            "labels": i % 2,
        }


acc = Accelerator(mixed_precision="bf16")
model = BertForSequenceClassification(BertConfig(num_labels=2))
opt = torch.optim.AdamW(model.parameters(), 2e-5)
sched = get_linear_schedule_with_warmup(opt, 10, 100)
dl = DataLoader(Rows(), batch_size=32, shuffle=True)
model, opt, dl, sched = acc.prepare(model, opt, dl, sched)
model.train()
for step, batch in enumerate(dl):
    loss = model(**batch).loss
    acc.backward(loss)
    acc.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    opt.zero_grad()
    if step % 5 == 0:
        acc.print(step, acc.gather(loss.detach()).mean().item())
    if step == 20:
        break
