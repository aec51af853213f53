"""Makes the data sets and models of runs.py in the current folder: ``python data.py KIND``.

Nothing is downloaded: texts, pictures and weights are drawn at random, the same each time.
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import numpy as np

_WORDS = [
    a + b
    for a in ["ba", "ke", "li", "mo", "nu", "pa", "ri", "so", "tu", "va"]
    for b in ["dan", "fel", "gor", "his", "jut", "kem"]
]


def _sentences(count: int) -> list[str]:
    drawn = np.random.default_rng(0)
    return [" ".join(drawn.choice(_WORDS, 30)) + "." for _ in range(count)]


def nanogpt() -> None:
    """Token ids and meta.pkl, where train.py looks for those of --dataset=shakespeare_char: beside the checkout."""
    checkout = Path(sys.argv[2]) / "data" / "shakespeare_char"
    drawn = np.random.default_rng(0)
    for name in ("train.bin", "val.bin"):
        drawn.integers(0, 64, 20_000).astype(np.uint16).tofile(checkout / name)
    (checkout / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 64}))


def images() -> None:
    """A folder of two classes, 384 pictures to train on and 8 to check."""
    from PIL import Image

    drawn = np.random.default_rng(0)
    for part, count in (("train", 384), ("val", 8)):
        for number in range(count):
            path = Path("images", part, f"class{number % 2}", f"{number}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(drawn.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(path)


def wikitext() -> None:
    """data/wikitext-2.txt of 4,080 blocks of 35 words, all but 4,000 of them to train on: two batches of 20 a rank."""
    words = (" ".join(_sentences(4760)).split())[: 34 * 4081]
    Path("data").mkdir(exist_ok=True)
    lines = [" ".join(words[at : at + 34]) for at in range(0, len(words), 34)]
    Path("data", "wikitext-2.txt").write_text("\n".join(lines))


def mingpt() -> None:
    """text.txt of 1,049 characters, beside main.py: 26 batches of 16 for each of two ranks, nine tenths of it."""
    text = " ".join(_sentences(20))
    Path(sys.argv[2], "text.txt").write_text(text[: 128 + 921])


def mnist() -> None:
    """MNIST's four raw files, random pictures, where torchvision and Lightning's examples look for them."""
    drawn = np.random.default_rng(0)
    for folder in (Path("MNIST/raw"), Path("Datasets/MNIST/raw")):
        folder.mkdir(parents=True, exist_ok=True)
        for part, count in (("train", 60_000), ("t10k", 10_000)):
            pictures = drawn.integers(0, 255, (count, 28, 28), dtype=np.uint8)
            header = np.array([2051, count, 28, 28], dtype=">i4").tobytes()
            (folder / f"{part}-images-idx3-ubyte").write_bytes(header + pictures.tobytes())
            labels = drawn.integers(0, 10, count).astype(np.uint8)
            (folder / f"{part}-labels-idx1-ubyte").write_bytes(
                np.array([2049, count], dtype=">i4").tobytes() + labels.tobytes()
            )


def _model(folder: Path, heads: int = 4) -> None:
    """A small Llama with random weights and a tokenizer of whole words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(_sentences(100), trainers.WordLevelTrainer(special_tokens=["<unk>", "<s>", "</s>"]))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=heads,
        num_key_value_heads=heads, max_position_embeddings=128, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def trl() -> None:
    """tiny/: the model; rows/: sentences; pairs/: prompts with a chosen and a rejected answer."""
    _model(Path("tiny"))
    sentences = _sentences(400)
    pairs = zip(sentences, reversed(sentences), strict=True)
    for name, rows in (
        ("rows", [{"text": text} for text in sentences]),
        ("pairs", [{"prompt": a, "chosen": " " + b, "rejected": " " + a} for a, b in pairs]),
    ):
        Path(name).mkdir(exist_ok=True)
        Path(name, "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def picotron() -> None:
    """tiny/, the same weights where picotron looks for them, texts/, and a configuration for each parallelism."""
    import shutil

    _model(Path("tiny"))
    Path("hf_model/tiny").mkdir(parents=True, exist_ok=True)
    shutil.copy("tiny/config.json", "hf_model/tiny")
    shutil.copytree("tiny", "hf_model_safetensors", dirs_exist_ok=True)
    Path("texts").mkdir(exist_ok=True)
    Path("texts/train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in _sentences(1200)))
    import torch

    cuda = torch.cuda.is_available()
    for kind in ("tp", "pp", "dp"):
        configuration = json.loads(Path(__file__).with_name("picotron.json").read_text())
        sizes = {f"{other}_size": 2 if other == kind else 1 for other in ("tp", "pp", "dp", "cp")}
        configuration["distributed"] |= sizes | {"backend": "nccl" if cuda else "gloo", "use_cpu": not cuda}
        Path(f"{kind}.json").write_text(json.dumps(configuration))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
