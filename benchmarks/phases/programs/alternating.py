"""Two halves of a model are trained in turn: a few steps of the dictionary, then one of the codes, which costs more."""

import torch
from timed import DEVICE, phase, rounds, sizes, wrap
from torch import nn

DICTIONARY_STEPS, BATCH, WIDTH = sizes(3, 5), sizes(80, 640), sizes(304, 2048)


def fit_dictionary(decoder, codes, batch, optimizer) -> None:
    loss = (decoder(codes) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def fit_codes(encoder, decoder, batch, optimizer) -> torch.Tensor:
    loss = 0.0
    codes = batch
    for _ in range(5):
        codes = encoder(codes)
        loss = loss + (decoder(codes) - batch).square().mean() + codes.abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return codes.detach()


def main() -> None:
    encoder = wrap(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)))
    decoder = wrap(nn.Linear(WIDTH, WIDTH))
    of_encoder = torch.optim.Adam(encoder.parameters(), lr=1e-4)
    of_decoder = torch.optim.Adam(decoder.parameters(), lr=1e-4)
    codes = torch.randn(BATCH, WIDTH, device=DEVICE)
    for _ in rounds():
        batch = torch.randn(BATCH, WIDTH, device=DEVICE)
        for _ in range(DICTIONARY_STEPS):
            with phase("dictionary", fit_dictionary):
                fit_dictionary(decoder, codes, batch, of_decoder)
        with phase("codes", fit_codes):
            codes = fit_codes(encoder, decoder, batch, of_encoder)


main()
