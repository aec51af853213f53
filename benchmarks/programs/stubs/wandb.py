"""Stands in for wandb where a program imports it and does not use it.

picotron, whose last import it is, is from the time of transformers 4: two names that transformers 5 lacks are put back.
"""

from transformers import LlamaConfig, PreTrainedTokenizerBase

if not hasattr(PreTrainedTokenizerBase, "batch_encode_plus"):
    PreTrainedTokenizerBase.batch_encode_plus = PreTrainedTokenizerBase.__call__
    LlamaConfig.rope_theta = 10000.0
