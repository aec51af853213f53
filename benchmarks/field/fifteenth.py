"""Public traces of a fifteenth wave, a sample by rules (samples.md, docs/field.md)."""

from __future__ import annotations

from benchmarks.field.input import CLEAN, INFERENCE, INPUT, LOST, NO_GPU, ONE, OPEN, SEVERAL, STARVES, UNMARKED, Input

# fmt: off
FIFTEENTH: tuple[Input, ...] = (
    Input("haraldnet", ONE, "analyze",
        "haraldger/High-Performance-Deep-Learning@71ec4118989454fbfe3ed6f70b810d231de685bc",
        "resnet50_bottleneck_trace.json",
        "f8da6c1d0b5789beeca2c704b1261187cca60dd96ac8b850d0630fd3313ca051",
        (
            "one training iteration of a ResNet-50 on a T4, no steps marked: GPU busy 46.1 % of 33.0 ms; the host "
            "launches each kernel about 15 µs before it begins"
        ),
        right=STARVES, abstains=OPEN,
        never=UNMARKED + "|✔", day=15),
    Input("tokenllama", SEVERAL, "analyze",
        "tugot17/tokenomics-from-first-principles@b5769743f89fc8a2d1440cc8575a8ed4865938d6",
        (
            "llama_trace_4layers0_with_annotations.json",
            "llama_trace_4layers1_with_annotations.json",
        ),
        "dd22ede8c3bcd00eb0d43a3e87ebb9b19506396a197626cd4befa8985c6b9978",
        (
            "2 ranks (2 RTX 4090), one cold forward pass of a tensor-parallel Llama of 4 layers, no steps: 987 "
            "and 997 ms, busy 58.1 and 53.0 %; idle mostly in first launches (343 and 368 ms before an "
            "index_put_); the last all-gather takes 441 ms on both; rank 0 waits some 45 ms for rank 1 in the "
            "first collectives"
        ),
        right=STARVES + "|all-gather|transfer|[Cc]ommunication|exposed", abstains=OPEN,
        never=UNMARKED + "|✔|NVLink", held=True, day=15),
    Input("lalaresnet", INFERENCE, "analyze",
        "andrewlala/ResNet50@2b1fa83f16dfe7c9b0c21496158f75191d343b1a",
        "trace_gpu.json",
        "c123a302169c497663f7fab8a7b4e6b230c5b09ca124282abc9b746d7ea04faa",
        (
            "one ResNet inference on a T4, no steps: GPU busy 39.8 % of 19.2 ms; the host launches each kernel "
            "just before it begins"
        ),
        right=STARVES, abstains=OPEN,
        never=UNMARKED + "|✔", day=15),
    Input("samfast", INFERENCE, "analyze",
        "pytorch-labs/segment-anything-fast@e6aadeb86f3ae1f58c3f98e2a91e251716e0f2aa",
        "amg_example/amg_example_trace.json.gz",
        "5dd54a8d57d048b39a1fe9c429f4ed36a6e90f90e5e3cc4ce14f079834426e81",
        (
            "SAM's mask generator on an A100, no steps: GPU busy 77.1 % of 648.8 ms; 274 synchronous copies, 199 "
            "of them to pageable memory, after which the host works while the GPU idles; the two longest gaps (56 "
            "and 32 ms) have no recorded call"
        ),
        right=STARVES + "|cop(y|ies)|[Rr]ead|the host has not launched it yet", abstains=OPEN,
        never=UNMARKED + "|✔", held=True, day=15),
    Input("paramresnet", ONE, "analyze",
        "facebookresearch/param@1e115ffc62c6d048405d9b963191736c13811b1d",
        "et_replay/tests/inputs/resnet_kineto.json.gz",
        "9467d74ddb0cd577859b294cfe4cf742e476e940d29d99dc0e25eed104088276",
        (
            "30 training iterations of a ResNet with a DataLoader, not marked, RTX 2080 Ti: GPU busy 32.6 % of "
            "14.5 s (45 % from the third on); half of that time it idles while the host waits in the DataLoader; "
            "pageable copies 630 ms; the first iterations are cold (cudnn 2.1 s); median iteration 176 ms, mean "
            "333"
        ),
        right=INPUT + "|next batch comes late", abstains=OPEN,
        never=r"✔|14[,.]?523 ms step|16[,.]?172 ms", held=True, day=15),
    Input("mtkineto", ONE, "analyze",
        "MooreThreads/kineto@fb1e7405f668890d9590643de7dc1c41d29bd09f",
        "tb_plugin/samples/resnet50_num_workers_0/worker0.1623143566756.pt.trace.json.gz",
        "da8bcc1a45ec0c3fd8b3c0acf64fbd42c10f31b854707b47561fd4f6cc084108",
        (
            "ResNet-50 with no data-loading workers on a V100, six steps of 149.5 to 171.8 ms (the first is the "
            "longest), busy 100 ms of each; the GPU idles 49 to 54 ms a step, 32 to 35 of them in the loader"
        ),
        right=INPUT, abstains=OPEN,
        never="✔", day=15),
    Input("inductor521", INFERENCE, "analyze",
        "Aldo-Zhang/CS521-mp2-private@8d2636947def3a04be724c59054324b40dba0c1d",
        "induction_trace.json",
        "a4ca98f57c786662838a7b23dfc7d3a1db297a3dddc00793f1383ba9ec297724",
        (
            "CUDA calls and device activity only, A10G, a program that compiles (three Triton kernels): GPU busy "
            "0.062 ms of 3,202 ms; no steps; 2,654 ms of it between two launches"
        ),
        right=STARVES, abstains=OPEN,
        never=UNMARKED + "|✔", day=15),
    Input("sustainstreet", INFERENCE, "analyze",
        "Yeok-c/sustainbench@29e4d14837b835341b1d3d9dce35e7c635ccdc69",
        "experiment_results/poverty/trace_street.json",
        "e50b1da0028e68496099e57ecc0beca7de59b4e5b9b0fa345d44e7a80b7b186e",
        (
            "one batch of a CLIP-like model on an A5000: the loader takes 5.1 s before any GPU activity, then the "
            "GPU is busy 87.1 % of 67.3 ms, 6.8 ms of it pageable copies; no steps"
        ),
        right=CLEAN + "|" + INPUT + "|" + STARVES + "|nothing but copies", abstains=OPEN,
        never=UNMARKED + "|✔", day=15),
    Input("cifar57", INFERENCE, "analyze",
        "sqrt57/solve-cifar10@546bcdb382a8db96978e3e57f00d025b8cc75562",
        "notebooks/trace.json",
        "e36891b79f5fa97cada4701d0157c6a8c1c600894a64c43e93efe769a4f4740b",
        (
            "one inference on an RTX 500 Ada laptop under Windows, no steps: GPU busy 99.4 % of 248.3 ms, "
            "launched well ahead"
        ),
        right=CLEAN, abstains=OPEN,
        never=UNMARKED + "|✖|" + STARVES, day=15),
    Input("arcws", INFERENCE, "analyze",
        "LeonardMendicantBias/arc_ws@5cd4c2c47f0f66d1d79d86edf25e1f8ea9839fee",
        "src/trace.json",
        "19d824e54481b72b85066d9d70a1f9bae8e70a7bc5dcca5d5544cfbc1284a2b5",
        "one inference on an RTX A5000, no steps: GPU busy 100.0 % of 78.6 ms, launched well ahead",
        right=CLEAN, abstains=OPEN,
        never=UNMARKED + "|✖|" + STARVES, day=15),
    Input("shiftvit", INFERENCE, "analyze",
        "willding123/Shift-Equivariant-Vision-Transformers@fdc9ac613b34f6311626f74081236006c80cf838",
        "trace.json",
        "36e25ba1926219121d420f9d06429d054c427a1d0e6609fe502193402c91ac26",
        (
            "CUDA calls and device activity only, A4000, a cold inference: GPU busy 16.0 ms of 11,961 ms; 9.9 s "
            "of it one gap while the first launches load (cudaLaunchKernel 5.6 s, cudaFree 4.0 s); no steps"
        ),
        right=STARVES, abstains=OPEN,
        never=UNMARKED + "|✔", held=True, day=15),
    Input("torchtutorial", INFERENCE, "analyze",
        "Quentin-Anthony/torch-profiling-tutorial@14b9676b944d082959a1b7905ef6f2dfd6a55591",
        "log/transformer/dcb0aa1a78e7_4399.1752181589621105859.pt.trace.json",
        "45d0b54a18de9e17693567fefdac991e16c54adc7ee57c1bc738be2ed8e36f9c",
        (
            "three marked steps of a forward pass on one H100, 1.16, 0.88 and 0.82 ms, GPU busy 0.13 ms of each "
            "(15 %): the host launches late, with stacks and memory recorded"
        ),
        right=STARVES, abstains=OPEN,
        never="✔", held=True, day=15),
    Input("lecture1", INFERENCE, "analyze",
        "gpu-mode/profiling-cuda-in-torch@28711acf6b893be855cccbb94cf8db8dd14b9dc9",
        "trace.json",
        "900bc67df25669cf8ccc00cd8b97cbec156491d6caa698adce6616fe3b5dd01c",
        (
            "two marked steps of 662 and 656 ms on an A10G: GPU busy 32 ms of each, 30.5 of it a pageable copy; "
            "it idles 607 ms while the host makes random numbers (aten::randn); ranks unknown"
        ),
        right=STARVES + "|" + INPUT, abstains=OPEN,
        never="✔", held=True, day=15),
    Input("gloop100", NO_GPU, "analyze",
        "pramod-b-s/839_Adv_ML_Project@5c255b3bd280f3ab4b07eda14f4ea56945a243e8",
        "trace_comm.json",
        "5c7c940b6a586a6e7107f4b06a841089c0e9183e8a3a443ad4f170a5d2e28816",
        (
            "rank 2 of 4, gloo: three sends and three receives in 4.6 ms, host operators only; the other three "
            "ranks are not there; no steps"
        ),
        abstains=OPEN + "|" + LOST,
        never=UNMARKED + "|✔|✖|idle: launched late", held=True, day=15),
    Input("attn3060", NO_GPU, "analyze",
        "harrisonvshen/triton-accelerated-attention@1cb6a97889f4e5559cb5a0d6bbdf35146cebd48a",
        "results/trace_fixed.json",
        "2c9738ee54f3034018ff557976de8fad94019992990f77474c44eaa5764cc0d4",
        (
            "an RTX 3060 laptop whose kernels are missing: 630 launches in 99 ms of host time, no kernel; no "
            "steps"
        ),
        abstains=LOST,
        never=UNMARKED + "|✔|✖", held=True, day=15),
    Input("dictlearn", NO_GPU, "analyze",
        "jacobcd52/dictionary_learning@26dce3cfc5ecd0dd6cc4d6a35d7a7647de040d1a",
        "notebooks/trace.json",
        "6fb9035a88598ae1ef40b29a6c360d0c4fbb184020d3cb7f2059138aaa8b9155",
        (
            "an A40 whose kernels are missing: 9 launches and cudaFree (36 ms) in 59 ms of host time, no kernel; "
            "no steps"
        ),
        abstains=LOST,
        never=UNMARKED + "|✔|✖", day=15),
    Input("final67960", NO_GPU, "analyze",
        "bossbobster/67960-final-project@1f962b4e11df3b6d0caa2eb8166daea3d1211b7f",
        "code/trace.json",
        "f38332fccd5d6fc65ea34d2f5c33cfc701ed43614cebb95f4c4a49ef664c6a7a",
        (
            "one training iteration with AdamW, 197 ms of host operators only, 196 times aten::item; "
            "aten::linear_backward, which MPS has and CPUs do not, so an Apple GPU that the trace does not show; "
            "no steps"
        ),
        abstains=LOST,
        never=UNMARKED + "|✔|✖|1 rank · cpu", held=True, day=15),
    Input("infranote", NO_GPU, "analyze",
        "szfmsmdx/Infra-note@a286d72283c2938071f5dcf2d7e271ce249ef8a0",
        "triton/trace.json",
        "d9d681930ff03009e5eda12d14bb085c97b57aaccb04bc7a0cc238f25dc9cfd1",
        "one inference of 95 ms on a CPU (host operators only); no steps",
        right=CLEAN, abstains=OPEN,
        never=UNMARKED + "|✔|✖", held=True, day=15),
    Input("gpquad", NO_GPU, "analyze",
        "danbider/gp-quadrature@00a0f6cefe9c5815228a5155d2f779cf2a26c4fa",
        "Tests and Sanity Checks/pytorch_profiler_trace.json",
        "8bc4746029b0f223193b74b82f28c2b456d6cdda9189775e1bf6402c78cf1ca2",
        "five annotated parts of a Gaussian process on a CPU, 4.9 ms, host operators only; no steps",
        right=CLEAN, abstains=OPEN,
        never=UNMARKED + "|✔|✖", day=15),
    Input("najaresnet", NO_GPU, "analyze",
        "NajaJean/MLOps@43648f1bd40426acd4cc8f905c534d8b29888a92",
        "src/log/resnet18/LAPTOP-VOB0TIP4_23616.1672931832914.pt.trace.json",
        "6cef8d8a1e936405d78249ef8c7e88efa12a922a31245b98d5ee1f40926cf412",
        "ten inferences of a ResNet-18 on a CPU in 2.5 s (mkldnn), host operators only, no marks",
        right=CLEAN, abstains=OPEN,
        never="✖|2[,.]?506 ms step", day=15),
)
# fmt: on
