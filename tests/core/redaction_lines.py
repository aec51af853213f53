"""Lines as commands, environments, logs and messages have them: what in each is secret, and that the rest is not.

`SEEN` was at hand when the rules were written, `ASIDE` was not. Secrets are made up here, so that no scanner of
repositories takes this file for a leak: `{hf}` and the like stand for values of a known shape.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass

_ALNUM = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"


def _drawn(letters: str, count: int, seed: int) -> str:
    return "".join(random.Random(seed).choices(letters, k=count))


SHAPES = {
    "hf": "hf" + "_" + _drawn(_ALNUM, 34, 1),
    "sk": "sk" + "-" + _drawn(_ALNUM, 48, 2),
    "skproj": "sk" + "-proj-" + _drawn(_ALNUM + "_-", 60, 3),
    "skant": "sk" + "-ant-api03-" + _drawn(_ALNUM + "_-", 60, 4) + "A9",
    "ghp": "gh" + "p_" + _drawn(_ALNUM, 36, 5),
    "gho": "gh" + "o_" + _drawn(_ALNUM, 36, 6),
    "ghs": "gh" + "s_" + _drawn(_ALNUM, 36, 7),
    "pat": "github" + "_pat_" + _drawn(_ALNUM, 22, 8) + "_" + _drawn(_ALNUM, 59, 9),
    "akia": "AK" + "IA" + _drawn(string.ascii_uppercase + string.digits, 16, 10),
    "asia": "AS" + "IA" + _drawn(string.ascii_uppercase + string.digits, 16, 11),
    "aws": _drawn(_ALNUM + "/+", 40, 12),
    "jwt": "ey"
    + "J"
    + _drawn(_ALNUM, 33, 13)
    + ".ey"
    + "J"
    + _drawn(_ALNUM, 60, 14)
    + "."
    + _drawn(_ALNUM + "_-", 43, 15),
    "xoxb": "xo" + "xb-" + _drawn(string.digits, 12, 16) + "-" + _drawn(_ALNUM, 24, 17),
    "xoxp": "xo" + "xp-" + _drawn(string.digits, 12, 18) + "-" + _drawn(_ALNUM, 24, 19),
    "glpat": "gl" + "pat-" + _drawn(_ALNUM + "_-", 20, 20),
    "aiza": "AI" + "za" + _drawn(_ALNUM + "_-", 35, 21),
    "hex40": _drawn(_HEX, 40, 22),
    "hex32": _drawn(_HEX, 32, 23),
    "b64": _drawn(_ALNUM + "+/", 43, 24) + "=",
    "rand20": _drawn(_ALNUM, 20, 25),
    "uuid": "3f2b8c1e-9a4d-4c7e-b1f0-6d2e8a5c9b70",
}


@dataclass(frozen=True)
class Line:
    """A text, and the parts of it that nobody may read."""

    text: str
    secrets: tuple[str, ...] = ()


def _lines(text: str) -> tuple[Line, ...]:
    """A line each; `«…»` is around what is secret, `{name}` is a value of a shape."""
    made = []
    for raw in text.strip().splitlines():
        filled = raw
        for name, value in SHAPES.items():
            filled = filled.replace("{" + name + "}", value)
        secrets = tuple(part.partition("»")[0] for part in filled.split("«")[1:])
        made.append(Line(filled.replace("«", "").replace("»", ""), secrets))
    return tuple(made)


SEEN = _lines("""
python train.py --api-key «{sk}» --lr 3e-4
python train.py --api-key=«{sk}»
--hf-token «{hf}» --model meta-llama/Llama-3.1-8B
HF_TOKEN=«{hf}»
OPENAI_API_KEY=«{skproj}»
export WANDB_API_KEY=«{hex40}»
wandb login «{hex40}»
AWS_SECRET_ACCESS_KEY=«{aws}»
AWS_ACCESS_KEY_ID=«{akia}»
{"api_key": "«{rand20}»", "model": "gpt2"}
{'password': '«hunter2»', 'user': 'ann'}
Authorization: Bearer «{jwt}»
curl -H "Authorization: Basic «{b64}»" https://example.org/v1
X-Api-Key: «{hex32}»
git clone https://«ann:{ghp}»@github.com/acme/model.git
https://«{gho}»@github.com/acme/model.git
postgresql://«trainer:s3cr3t!»@db.example.org:5432/runs
redis://«:p4ssw0rd»@cache:6379/0
--db-password "«correct horse»"
MYSQL_PASSWORD=«hunter2»
ValueError: invalid api_key: «{rand20}»
requests.exceptions.HTTPError: 401 Client Error for url: https://«bot:{rand20}»@api.example.org/x
«{ghp}»
found «{glpat}» in .netrc
slack «{xoxb}» posted
Using token «{hf}»
--client-secret=«abcdefgh»
--credentials «{b64}»
GOOGLE_API_KEY=«{aiza}»
cookie: «session={hex32}»
--auth «ann:hunter2»
https://bucket.s3.amazonaws.com/x?X-Amz-Signature=«{hex40}»&X-Amz-Date=20260101T000000Z
https://example.org/cb?access_token=«{rand20}»&page=2
--passphrase «{rand20}»
"secret_key": "«{aws}»",
token: «{uuid}»
curl -u «ann:hunter2» https://example.org
DATABASE_URL=mysql://«root:toor»@localhost/x
apiKey: '«{rand20}»'
--private-key=«{b64}»
--tokenizer gpt2
--max-tokens 512
--max_new_tokens=64
--key-dim 64
num_key_value_heads=8
author=Ann Lee
token_bucket=large
NCCL_SOCKET_IFNAME=eth0
NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH
--sort-key loss
--sort-keys
sort_keys=True
KeyError: 'transformer.h.0.attn.c_attn.weight'
Missing key(s) in state_dict: "lm_head.weight", "module.embed.weight"
--pad-token <pad>
eos_token: </s>
--tokens-per-step 8192
tokens/s: 41234.5
RuntimeError: Unexpected token: expected identifier
https://github.com/acme/model.git
git@github.com:acme/model.git
ssh://git@github.com/acme/model.git
tcp://10.0.0.1:29500
--use-auth-token True
use_auth_token=False
--password-file /run/secrets/db
--auth-type basic
monkey=banana
keyboard: qwerty
PWD=/home/ann/project
--key-padding-mask left
torch.nn.MultiheadAttention(embed_dim=512, num_heads=8, kdim=64, key_padding_mask=None)
commit 3fa9c1d2e8b7a6c5d4e3f2a1b0c9d8e7f6a5b4c3
--checkpoint /data/ckpt/step_1000
--run-id 20260101-abcdef12
sk-learn-contrib is installed
task-specific-finetuning-of-large-models
""")

ASIDE = _lines("""
torchrun --nproc-per-node 8 train.py --openai_api_key «{skproj}»
deepspeed train.py --hub_token=«{hf}» --fp16
ANTHROPIC_API_KEY=«{skant}»
GITHUB_TOKEN=«{ghs}»
GH_TOKEN: «{pat}»
CI_JOB_TOKEN=«{rand20}»
aws_session_token = «{b64}»
aws_access_key_id = «{asia}»
os.environ["MY_SECRET"] = "«{rand20}»"
export DB_PASSWD='«Tr0ub4dor&3»'
PGPASSWORD=«hunter2» psql -h db
wandb: Currently logged in with key «{hex40}»
WANDB_KEY «{hex40}»
{"Authorization": "Bearer «{rand20}»"}
headers={'X-Auth-Token': '«{hex32}»'}
Proxy-Authorization: Basic «{b64}»
s3://«{akia}:{aws}»@bucket/run
https://«oauth2:{glpat}»@gitlab.example.org/acme/model.git
amqp://«guest:guest»@queue:5672/
mongodb+srv://«ann:pa55»@cluster0.example.net/test
remote: https://«x-access-token:{ghs}»@github.com/acme/x
--wandb-api-key «{hex40}»
--login.token=«{hf}»
trainer.logger.api_key=«{rand20}»
+hydra.env.AZURE_STORAGE_KEY=«{b64}»
AccountName=acme;AccountKey=«{b64}»;EndpointSuffix=core.windows.net
https://acme.blob.core.windows.net/c/x?sv=2022&sig=«{rand20}»
slack_token «{xoxp}»
Bearer «{jwt}»
"jwt": "«{jwt}»"
password = «letmein»
Password: «letmein»
passwd=«x9!k»
--basic-auth «admin:admin»
--credential «{rand20}»
service_account_credentials: «{b64}»
my_secret_value=«{rand20}»
SecretAccessKey: «{aws}»
clientSecret=«{rand20}»
token=«{jwt}»
huggingface_hub.errors.HfHubHTTPError: 403 for token «{hf}»
RuntimeError: could not log in with «{ghp}»
key=«{aiza}»
--registration-token «{glpat}»
--tokenizer-name bert-base-uncased
tokenizer.json
--num-tokens 1B
--context-tokens=4096
max_length_tokens: 2048
--key-value-heads 8
n_kv_heads=4
--group-by-key rank
--primary-key step
dict keys: ['loss', 'step']
KeyError: 'LOCAL_RANK'
KeyError: 'optimizer_state_dict'
AttributeError: 'NoneType' object has no attribute 'key'
bos_token=<s>
--mask-token [MASK]
unk_token: <unk>
pad_token_id=50256
authors=Ann, Bob
authority: example.org
--authoritative yes
--token-dropout 0.1
token_type_ids: torch.int64
--drop-token-rate=0.05
NCCL_IB_HCA=mlx5_0,mlx5_1
NCCL_ALGO=Ring
TORCH_NCCL_TRACE_BUFFER_SIZE=2000
CUDA_VISIBLE_DEVICES=GPU-3f2b8c1e-9a4d-4c7e-b1f0-6d2e8a5c9b70
SLURM_JOB_NODELIST=gpu[001-004]
https://huggingface.co/gpt2/resolve/main/model.safetensors
file:///data/train.bin
http://proxy:3128
rank 3 waits in ncclAllReduce with key 17
store key: default_pg/0//cuda//0
--secret-santa False
--api-key-file ~/.config/key
--token-path /var/run/token
GOOGLE_APPLICATION_CREDENTIALS_FILE=/etc/gcp.json
auth=False
--no-auth
bypass=1
forward_pass: 12.5 ms
--mode key
--attention-keys 64
git rev-parse 9c091bb21b7c1c1d1991bb908d89e4e9dddfe3e0
--seed 1234567890
desk-based-office-chairs-and-tables
hf_hub_download
ghp_short
""")
