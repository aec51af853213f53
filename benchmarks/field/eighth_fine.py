"""Files of an eighth day that tell of a failure, and its healthy logs, a sample by rules (docs/field.md)."""

from __future__ import annotations

from benchmarks.field.input import CRASH, FINE, NO_EVIDENCE, Input

# fmt: off
EIGHTH_FINE: tuple[Input, ...] = (
    Input("thesis", CRASH, "diagnose",
        "vdkhoi20/thesis@9ea238268db9ca718797fb3621fedbf4e99b1832", "slurm.err",
        "d2cf5c5171f50c8f0ab8a3cfcac74055fe91f776dab4e1df15239e4266c418a0",
        (
            "bash says that a server of Stable Diffusion (pid 427394) in a job of Slurm was killed; by whom is "
            "not in these lines"
        ),
        right="[Kk]illed|SIGKILL", never="✔|holds no evidence", held=True, day=8),
    Input("efficientdet", CRASH, "diagnose",
        "Fschoeller/EfficientDet.Pytorch@24afb104dfa7fc43847976c9f82606e8b5be5f82", "train.err",
        "6cfd8655d82a7b93ffeeff7ddab45b174df34ad1a23b40119c54c8c874f959b5",
        (
            "five attempts one behind the other, each ended by another exception, the last that tells one by a "
            "ValueError (Could not find a format to read the specified file); a sixth has only loaded its "
            "modules"
        ),
        right="Could not find a format", never=r"✔|holds no evidence|too many values", held=True, day=8),
    Input("cs287", CRASH, "diagnose",
        "kevinrankine/cs287-final@4b9fd5e1bf0c8ca4efb93c7939aeaf38e93fc76e", "slurm.err",
        "6f7e4cd36764e91be2dce2a5fe40a75867238d7c94b62c28dda474bf2cf194ff",
        "Slurm cancelled a job on a GPU node; nothing else is in the file",
        right="[Cc]ancel|CANCELLED", never="✔|holds no evidence", held=True, day=8),
    Input("lcnllama", CRASH, "diagnose",
        "gtseligas/lcn-llama@9fcec36a8056aac67457978be2d93f6488fe7937", "train.err",
        "d95efd68777fb46863c706290bab6de2fd498e37fa66230dcd3d91bfd1be28d6",
        (
            "out of memory on GPU 0 under DataParallel, in the first step: 512 MiB asked, and the process may "
            "hold 60.25 of 63.42 GiB, of which tensors take 59.76"
        ),
        right=r"ran out of GPU memory.*(60\.25|allowed|limit)",
        never="✔|holds no evidence|fragmented|other processes", held=True, day=8),
    Input("deepspeed1825", FINE, "diagnose",
        "deepspeedai/DeepSpeed#1825", "log.txt",
        "e00527b0eddcd602b164c7f9fe9a282686464cbab6519caad801169798890b88",
        "three reports of DeepSpeed's speed, 83 samples a second, between lines of IPython; nothing failed",
        right=NO_EVIDENCE, never="✖|▲", day=8),
    Input("deepspeed3544", FINE, "diagnose",
        "deepspeedai/DeepSpeed#3544", "log.txt",
        "cea1c2ee555ca8b5de11b9d108668dba660880166676433dc7bf04e35dd0258f",
        "DeepSpeed prints its configuration; nothing failed",
        right=NO_EVIDENCE, never="✖|▲", day=8),
    Input("vllm14452", FINE, "diagnose",
        "vllm-project/vllm#14452", "log.txt",
        "ee9b9306e181b3588c9a70ebb1d563a28b9875294134bbf427121af457e46188",
        "vLLM's server lists its routes and starts; nothing failed",
        right=NO_EVIDENCE, never="✖|▲", day=8),
    Input("vllm3048", FINE, "diagnose",
        "vllm-project/vllm#3048", "log.txt",
        "b1781d1335f558c09231f3d91bb9724c0a098e87bc106a813ac5b4b358598780",
        "vLLM's server is idle for 40 s: throughput 0.0, no requests; nothing failed",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=8),
    Input("imagerecog", FINE, "diagnose",
        "chaNcharge/imagerecog@5cdb0c2a91d0a2132181b753be933eaada953f55", "train.out",
        "1987438809f5296a5ad04efc263eddf2e8dbe1f6580b9bbac8400de60bf06d17",
        "two epochs on CIFAR-10 and a test, to the end",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=8),
    Input("culturalspec", FINE, "diagnose",
        "ArchitRastogi20/cultural-specificity-classifier@d647ec1d8076bebb9c54abd477f3b6831201cd4c", "logs/training.log",
        "ca943e7677bee3cd81445e8745f63501eb00ead950a6e0c778af8a0cb7e38da5",
        (
            "DeBERTa on a V100: a first start that ends after its tokenizer, then five folds to the end: "
            "Training Complete"
        ),
        right=NO_EVIDENCE, never="✖|▲", held=True, day=8),
    Input("llamasft", FINE, "diagnose",
        "Ishihara-Masabumi/Llama_SFT@c28ad451b59ad612a0b61dbc650a8aaeabd391d7", "train_log.txt",
        "3b50d8bc9800f251ab1956a1eb8f5f8b198264c08d394572f26405af4ef9e5ad",
        (
            "the end of a training of Llama with TRL, progress bars over each other: Training complete; the "
            "last 200 kB of the file"
        ),
        right=NO_EVIDENCE, never="✖|▲", day=8),
    Input("ecgqa", FINE, "diagnose",
        "Tang-Jia-Lu/FSL_ECG_QA@6500ebb90711e519b08d7e2dbf29e446c0f35659", "train.out",
        "f691a01d6599fd4902660c27be8ba33ecc723dd0558ff7caa893fa4d1862cdbd",
        "a training on a GPU loads its samples and shuffles them; the log ends there without a word",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=8),
)
# fmt: on
