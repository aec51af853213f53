"""A notebook's cells as a script: a network whose weights are stepped by hand, without torch's optimizers.

Planted, and left out with --tidy: a list of losses that keeps each step's graph of the device waiting (.item()).
"""

import torch
from own import CUDA, DEVICE, TIDY, same_each_time, tell, training_begins

# %% Data
WIDTH, LAYERS, BATCH, STEPS = (2048, 6, 4096, 150) if CUDA else (64, 3, 16, 60)
same_each_time()
x = torch.randn(BATCH, WIDTH, device=DEVICE)
y = torch.randn(BATCH, 8, device=DEVICE)

# %% Network
layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
net = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 8)).to(DEVICE)

# %% Training
losses = []
training_begins()
for _ in range(STEPS):
    loss = ((net(x) - y) ** 2).mean()
    net.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.01 * parameter.grad
    losses.append(loss.detach() if TIDY else loss.item())

# %% What came of it
tell(STEPS, net, f"loss {float(losses[-1]):.6f}")
