"""Healthy pastes of a twelfth day, a sample by rules (samples.md, docs/field.md)."""

from __future__ import annotations

from benchmarks.field.input import FINE, NO_EVIDENCE, Input

# fmt: off
TWELFTH_FINE: tuple[Input, ...] = (
    Input("raylit176", FINE, "diagnose",
        "ray-project/ray_lightning#176", "log.txt",
        "9bf94d4a445a2919021a0a3a34536a8706297118ca15ea483194d9c8b6ad96f9",
        "a training with Ray and Lightning's DDP shows its progress bar",
        right=NO_EVIDENCE, never="✖|▲", day=12),
    Input("ds931", FINE, "diagnose",
        "deepspeedai/DeepSpeed#931", "log.txt",
        "5ce6a5b93001888865192df9c5cb71c4ef8051d6789899b024f312b83db2b629",
        "DeepSpeed's loss scaler skips the first steps, which is normal",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=12),
    Input("meshplugin56", FINE, "diagnose",
        "autoscriptlabs/nccl-mesh-plugin#56", "log.txt",
        "bd56be65fe3041607622a67d69046c982e9e1d6b1b1c1c4eb88336f4f3fa057d",
        "NCCL connects its channels over a plug-in; all rings are connected",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=12),
    Input("vllm7540", FINE, "diagnose",
        "vllm-project/vllm#7540", "log.txt",
        "1dad4704a00f84d2fa646a86d5461f57692ef01146f89cb98cfd24006ac56334",
        "vLLM's server serves; the question is of its speed",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=12),
    Input("megatron756", FINE, "diagnose",
        "NVIDIA/Megatron-LM#756", "log.txt",
        "593642c34ac3402f58abf0db26e97d7411c63784d9441518273c29834d717052",
        "Megatron trains; the question is of its speed",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=12),
    Input("lightning6406", FINE, "diagnose",
        "Lightning-AI/pytorch-lightning#6406", "log.txt",
        "a735b97f7c1fc8ce7ba41c6fa93f6af23f2013eef203580be35b9dc6dfb598e7",
        "Lightning trains with DDP on 4 GPUs; the question is of its progress bar",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=12),
    Input("ds386", FINE, "diagnose",
        "deepspeedai/DeepSpeed#386", "log.txt",
        "992c3e0fa1f37ca9055c39c05aee481a5d52f4d100a32496e67d7f985c4bf028",
        "DeepSpeed's loss scaler finds its scale in the first steps",
        right=NO_EVIDENCE, never="✖|▲", day=12),
    Input("vllm8847", FINE, "diagnose",
        "vllm-project/vllm#8847", "log.txt",
        "e4fc401ccd717e8b928e8d938f3113bf0c849b04a8946d48458b8925da332ad2",
        "vLLM's server serves slowly; nothing failed",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=12),
)
# fmt: on
