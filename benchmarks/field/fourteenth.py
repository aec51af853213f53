"""Failing texts of a fourteenth day, a sample by rules (samples.md, docs/field.md): beside the step itself."""

from __future__ import annotations

from benchmarks.field.input import CRASH, UNTOLD, Input

# fmt: off
FOURTEENTH: tuple[Input, ...] = (
    Input("pt143828", CRASH, "diagnose",
        "pytorch/pytorch#143828",
        "log.txt",
        "825333797cc1c0df452a52c547925f4bcf6a8a494bfa9fec4cb045c609dd1aa3",
        (
            "rank 1: KeyError: 'betas' in optim_new.step() of dcp_bug.py (line 45): a parameter group of "
            "the loaded optimizer state has no betas"
        ),
        right="betas", abstains=UNTOLD,
        never=r"✔|holds no evidence|\b[Rr]anks? 0\b[^.]*(absent|missing|no output|waits)",
        root="betas", held=True, day=14),
    Input("dlms4", CRASH, "diagnose",
        "JinjieNi/dlms-are-super-data-learners#4",
        "log.txt",
        "5defaca99936ea7e55b671495d8d3253667fc93da376e93bdab9ef260f1f384a",
        (
            "loading a distributed checkpoint of Megatron failed in create_local_plan on rank 2 (printed "
            "by rank 3); the error is cut off, the heading says that keys are missing in the checkpoint"
        ),
        right="create_local_plan|create_default_local_load_plan|[Mm]issing [Kk]ey|[Tt]raceback", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="create_local_plan|create_default_local_load_plan|[Mm]issing [Kk]ey", held=True, day=14),
    Input("realhf44", CRASH, "diagnose",
        "openpsi-project/ReaLHF#44",
        "log.txt",
        "f69f0453ed7b1d21d9d7c273d8b06f637f60ac959dcdf309b26a048a445bf046",
        (
            "a model worker of ReaLHF failed while it loaded its model (instantiate in real_llm_api.py, "
            "line 219); the error is cut off"
        ),
        right="[Tt]raceback|realhf|instantiate", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="realhf|instantiate", day=14),
    Input("dolly139", CRASH, "diagnose",
        "databrickslabs/dolly#139",
        "log.txt",
        "ba29de6a0129a28b8ca9bf2e4f49af49efc576c49bab1992a15d8209bbb8cb74",
        "no disk space was left while torch saved a checkpoint (OSError 28 in torch.save)",
        right="[Nn]o space|space left|disk", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="[Nn]o space|space left|disk", day=14),
    Input("piper779", CRASH, "diagnose",
        "rhasspy/piper#779",
        "log.txt",
        "2856318bc571b24848e5758081cdacd7ad8fa350f8ea54045ee6150d1bddeed9",
        "a traceback of piper_train (trainer.fit of Lightning), cut off before its error",
        right="[Tt]raceback|piper_train|trainer", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="piper_train|trainer", day=14),
    Input("diffusers817", CRASH, "diagnose",
        "huggingface/diffusers#817",
        "log.txt",
        "faa09e1569f310c4418dbfd0135b500f0990e7296896e3c27a7a7c072dd1a7ae",
        (
            "RuntimeError: Found dtype Half but expected Float, in accelerator.backward(loss) of "
            "train_dreambooth.py, line 557"
        ),
        right="Found dtype Half", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="Found dtype Half", day=14),
    Input("distil71", CRASH, "diagnose",
        "huggingface/distil-whisper#71",
        "log.txt",
        "5b1405f4335eb0ec20029e45225e19655582a4d95b184c95c8b817541c7b4ee8",
        (
            "torch.compile failed under DDP: BackendCompilerFailed, TypeError: _convert_frame_assert() "
            "missing 1 required positional argument: 'hooks'"
        ),
        right="_convert_frame_assert|hooks", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="_convert_frame_assert|hooks", day=14),
    Input("triton8096", CRASH, "diagnose",
        "triton-lang/triton#8096",
        "log.txt",
        "20575afc67936d682f3223ab6de7dfe3e89197a0060858810f066ce478266d09",
        (
            "vLLM's engine core on a Jetson Thor: ptxas of Triton failed for sm_110a with exit status "
            "255; the exception that follows is cut off"
        ),
        right="ptxas|sm_110a", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="ptxas|sm_110a", held=True, day=14),
    Input("ds5696", CRASH, "diagnose",
        "deepspeedai/DeepSpeed#5696",
        "log.txt",
        "7b780e49a41eed41c0cc63a5f64bc2bd57d0dc10d22dd4a11cb52e2fb9eaf305",
        (
            "a traceback of InternVL's training in a pipeline of DeepSpeed after step 1, cut off in its "
            "first frame; the warnings above are shapes that the program prints"
        ),
        right="[Tt]raceback|intern_vl_chat", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="[Tt]raceback|intern_vl_chat", day=14),
    Input("vllm596", CRASH, "diagnose",
        "vllm-project/vllm#596",
        "log.txt",
        "ae20af5ec11a137ea99e2738c892e1bf36691d13bd35fda7ada7e36260f04817",
        (
            "vLLM refuses its setting: 40 attention heads are not divisible by a tensor parallel size of "
            "3 (and 3 GPUs not by 2); the traceback is cut off"
        ),
        right="divisible", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="divisible", held=True, day=14),
    Input("colossal2834", CRASH, "diagnose",
        "hpcaitech/ColossalAI#2834",
        "log.txt",
        "b2193bb95fc41ebdfcbeea70f2aea5d6aa3448068d83d882e29a08dd686f895f",
        (
            "AssertionError: fp32 param and grad have different shape (279245825 and 1025), in "
            "ColossalAI's low-level ZeRO with LoRA; a second process's traceback is cut off"
        ),
        right="different shape", abstains=UNTOLD,
        never="✔|holds no evidence|device-side",
        root="different shape", held=True, day=14),
    Input("tgi3317", CRASH, "diagnose",
        "huggingface/text-generation-inference#3317",
        "log.txt",
        "7df8a4fcf4abcbacfef3a6ffe96669376f2e7dbc56af69e6834f8822c0a99d17",
        (
            "the endpoint of TGI failed to start or ended with exit code 1: its router cannot connect to "
            "the shard's server (No such file or directory, os error 2); why the shard ended is not in "
            "these lines"
        ),
        right="failed to start|[Ee]xit code|exit code 1|trying to connect|os error 2", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="failed to start|[Ee]xit(ed)? (with )?(code|exit code)|trying to connect|os error 2", day=14),
    Input("lmdeploy4944", CRASH, "diagnose",
        "InternLM/lmdeploy#4944",
        "log.txt",
        "1960a3b3e63c456be4f27eea412ca512778884ee577bbfc750be28b9a4e20c05",
        (
            "LMDeploy's server (TurboMind) crashed three times with a general protection fault in libc, "
            "SIGSEGV by its reader"
        ),
        right="general protection|SIGSEGV|[Ss]egmentation", abstains=UNTOLD,
        never="✔|holds no evidence|out of memory",
        root="general protection|SIGSEGV|[Ss]egmentation", held=True, day=14),
    Input("ray19696", CRASH, "diagnose",
        "ray-project/ray#19696",
        "log.txt",
        "88de1983bd71a2faa42fb8970bac08e0c419be4bedcc6321c7541c53ce7c4e5a",
        (
            "Ray Tune says that one of seven trials is in error while six run; its error is in the "
            "heading only (ValueError: the parameter logits has invalid values)"
        ),
        right="1 ERROR|one trial|1 trial|logits", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="1 ERROR|[Tt]rial|logits", day=14),
    Input("streaming824", CRASH, "diagnose",
        "mosaicml/streaming#824",
        "log.txt",
        "10a16cd11cfbdc87276a250d57aa2547d7ac9d5d8c5fbc3ae6482dbbd03626da",
        (
            "rank 7's traceback in StreamingC4 of text_data.py, line 132, while it builds its loader; the "
            "error is cut off"
        ),
        right="[Tt]raceback|text_data", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="text_data", held=True, day=14),
    Input("torchtune2001", CRASH, "diagnose",
        "meta-pytorch/torchtune#2001",
        "log.txt",
        "a4fef37a221a86b1e87d9dd14d36cc2a0028030e0f769f2e4a1d3fd55cf92090",
        (
            "the command tune knows no command run: it is another program's (or an old one), and no "
            "training began"
        ),
        right="No such command|run'", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="No such command", held=True, day=14),
    Input("fairseq512", CRASH, "diagnose",
        "facebookresearch/fairseq#512",
        "log.txt",
        "0a735131e9ab0af907db4002fb743cf5dd5cae449d3e29d71ee96abbfb90d9a9",
        (
            "fairseq's loss scale fell to its minimum after twelve overflows in a row, and train.py "
            "failed; the traceback is cut off in its first frame"
        ),
        right="loss scale|overflow|[Tt]raceback", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="loss scale|overflow|[Tt]raceback", held=True, day=14),
    Input("webds418", CRASH, "diagnose",
        "webdataset/webdataset#418",
        "log.txt",
        "d12f58986c22d7706abe1f69f91eb3d70072c86d5add1c2d64d07e6c0c54be82",
        "rank 0's traceback in training_loop of sid_train.py, line 388, cut off before its error",
        right="[Tt]raceback|sid_train", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="sid_train", day=14),
    Input("cnphi3dpo", CRASH, "diagnose",
        "CqGao112/CN-Mini-Phi3@4074a0161045ab30257f5fd976d9e8d83db948b7",
        "dpo.log",
        "1e4e32c73a57b266e68e1d192af830b345922ee9d5c8dae5760089b331785c49",
        (
            "DeepSpeed's launcher got SIGINT (Ctrl-C) after the first steps of a DPO training and killed "
            "its six processes"
        ),
        right="SIGINT|Ctrl-C|interrupt", abstains=UNTOLD,
        never="✔|out of memory|[Rr]ank [0-9]+ (died|crashed)",
        root="SIGINT|Ctrl-C|interrupt", day=14),
    Input("qamrloom", CRASH, "diagnose",
        "udaybindal01/QA-MRL@2c5b907327dda20b84480474d47a170f3d29135d",
        "wandb/run-20260331_184926-zgkh8rj4/files/output.log",
        "fcd65a0b743a7e419287e7f216ccd50345607a6cedc0488cb7e01698429812f8",
        (
            "CUDA out of memory in the first step: 72 MiB wanted, 30 MiB of 10.57 GiB free; another "
            "process (110395) has 4.74 GiB of that GPU"
        ),
        right="out of (GPU )?memory", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="out of (GPU )?memory", held=True, day=14),
    Input("nanorunall", CRASH, "diagnose",
        "rajvardhan19/HPML_NanoChat@a43ad6e48ce0d81070f0c8f4ead24497b93017df",
        "logs/run_all.log",
        "c23c78691c8c92b890fdaced40453c7985f68ad59696f92afb0dd80ce5c61ba9",
        (
            "the first training of a script ended well; its second, A_baseline, refused to start: "
            "FileExistsError, checkpoints/A_baseline exists (--resume would go on from it)"
        ),
        right="FileExistsError|already exists", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="FileExistsError|already exists", day=14),
    Input("hubertllama", CRASH, "diagnose",
        "ydhira/finetuning_hubert_llama@02b2f3965813062c3d1558aaa1d02e5885e04a47",
        "logs/training-Llama-2-7b-hf.log",
        "ea9775f85d0728d5101c67bab51d34cab1305f4783795a17a308e06f9ede0ec2",
        (
            "one of eight processes failed with UnboundLocalError (lm_datasets, train.py line 269); "
            "DeepSpeed's launcher then killed the others in their tokenizing"
        ),
        right="lm_datasets|UnboundLocalError", abstains=UNTOLD,
        never="✔|holds no evidence|out of memory",
        root="lm_datasets|UnboundLocalError", day=14),
    Input("n2nmngt", CRASH, "diagnose",
        "YuJiang01/n2nnmn@f0d751313ca756fe40ece1a7bbb0205ab899adf8",
        "train_gt_modify.err",
        "f15aeeb502a21eb7d77ce3f33a1bf72d75330c5bc2c220b36ad6c94a19bccb13",
        (
            "TabError: inconsistent use of tabs and spaces in nmn3_modules.py, line 303, when "
            "train_clevr_gt_layout.py imports its model"
        ),
        right="TabError|tabs and spaces", abstains=UNTOLD,
        never="✔|holds no evidence",
        root="TabError|tabs and spaces", held=True, day=14),
    Input("mtcpnohup", CRASH, "diagnose",
        "maryjis/mtcp@09d7045221f0829f9030e7209410121e1120056d",
        "nohup.out",
        "c23f40a32cd749075f93f2966158713436f95a02adc5be2d637c462eba4213c1",
        (
            "two starts in one file: the first was interrupted by hand (KeyboardInterrupt), the second "
            "trained and tested its five folds to the end; no error"
        ),
        right="KeyboardInterrupt|[Ii]nterrupted|Ctrl-C|SIGINT|holds no evidence", abstains=UNTOLD,
        never="✔|✖|out of memory",
        root="KeyboardInterrupt|[Ii]nterrupt|Ctrl-C|SIGINT", day=14),
)
# fmt: on
