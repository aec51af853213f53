"""Stands in for flash_attn, which has to be compiled: for picotron, which imports it and does not call it here.

picotron is from the time of transformers 4: two names that transformers 5 lacks are put back.
"""

from transformers import LlamaConfig, PreTrainedTokenizerBase

if not hasattr(PreTrainedTokenizerBase, "batch_encode_plus"):
    PreTrainedTokenizerBase.batch_encode_plus = PreTrainedTokenizerBase.__call__
    LlamaConfig.rope_theta = 10000.0
