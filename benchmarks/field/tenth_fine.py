"""Healthy logs of a tenth day, a sample by rules (docs/field.md)."""

from __future__ import annotations

from benchmarks.field.input import FINE, NO_EVIDENCE, Input

# fmt: off
TENTH_FINE: tuple[Input, ...] = (
    Input("horovod1421", FINE, "diagnose",
        "horovod/horovod#1421", "log.txt",
        "84e73c852cf97dc3eaaa2ff953bd16037276079033ee2f2ad998c38410495b3d",
        "two ranks of Horovod train YOLOv3, with warnings of deprecated names; nothing failed in these lines",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=10),
    Input("horovod1410", FINE, "diagnose",
        "horovod/horovod#1410", "log.txt",
        "819c1289a054c8c4e41dbbb7823b596a7dd8ad1937fba5a9c28427210a24aecf",
        "Horovod's ranks warn of TensorFlow's deprecated names; nothing failed",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=10),
    Input("horovod1737", FINE, "diagnose",
        "horovod/horovod#1737", "log.txt",
        "14b960ad002fe3730832ff1bc48a43986eb1d9f25ff7c4d1b6e524b54fb6e77d",
        "Horovod's rank 1 repeats numpy's FutureWarnings; nothing failed",
        right=NO_EVIDENCE, never="✖|▲", day=10),
    Input("pytorch153438", FINE, "diagnose",
        "pytorch/pytorch#153438", "log.txt",
        "e7f58b3104d5195f1cee9de38735350c757b5c13f2d63ab7d93ff944039d8d70",
        "torch on Intel XPU warns that a kernel is registered twice; nothing failed",
        right=NO_EVIDENCE, never="✖|▲", day=10),
    Input("ipex378", FINE, "diagnose",
        "intel/intel-extension-for-pytorch#378", "log.txt",
        "626a84c0d9c7ddf9205b7774313ed207e25cbb987ccd82fc1746011016e0434b",
        "a training starts on Intel XPU, with warnings of its optimizer; nothing failed",
        right=NO_EVIDENCE, never="✖|▲", day=10),
    Input("mmcoqa", FINE, "diagnose",
        "XerXes100/MMCoQA@d255f890e776414030609c120f4fd02ad4ed184c", "nohup.out",
        "bfe5f7938d75f044327eeed5b1069cc954a82a934be2ee412c290b5e74effde9",
        "a test of a question answering model, to its result; the last 200 kB of the file",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=10),
    Input("yolov7wug", FINE, "diagnose",
        "WuG978/yolov7@184a5ee146fcbd91bd47da018c172cebd9038fd8", "nohup.out",
        "8e51ff9342f11860f26e586b6fb97b1336b648dbddf268e50382ba7630a5c4c4",
        "YOLOv7 trains 300 epochs to the end; the last 200 kB of the file",
        right=NO_EVIDENCE, never="✖|▲", day=10),
    Input("transatt", FINE, "diagnose",
        "IamAnh47/TransAttUnet-LIDC@50ca3077bc555a6f2cf47eb261b50f337229fbb3", "logs/train.log",
        "5376c155eff7b049c38903f94481d4ea03753b1e953b78bbc427b72dbfcd9df0",
        (
            "a training with messages in Vietnamese, to its early stop after 49 epochs; the last 200 kB of the "
            "file"
        ),
        right=NO_EVIDENCE, never="✖|▲", held=True, day=10),
    Input("en2zh", FINE, "diagnose",
        "B777B2056-2/machine_translation_en2zh@1f6367ef929f33dfb88944830fa24a5645b512b3", "train.log",
        "f8055c6c1c4779d7ae5399b9022da8ebb325c6550776cae3fafb397f1bee4a7e",
        (
            "a translation model trains with data parallelism under the profiler, in epoch 51 of 100; nothing "
            "failed"
        ),
        right=NO_EVIDENCE, never="✖|▲", held=True, day=10),
    Input("imagegen", FINE, "diagnose",
        "Ebiquity/image_generator@07776211b12b6f44be1973a7c21fe467ac4d4d77", "slurm.out",
        "72816a766e14be8558f8ee59253f92b27ef2349ceeb75a62ef45316ddc55f5fc",
        "20 epochs of a GAN under Slurm, to the end; then it generates images",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=10),
    Input("e2dtc", FINE, "diagnose",
        "Gila-6/E2DTC@55825dd877daa9965408a2584e28fb9bb50dfcbd", "slurm.out",
        "69fb073ceb3a2bcd333195964f7b9a2d61271afe69fc7efa6272a9232000810d",
        "a training under Slurm with warnings of torch, to its best epoch",
        right=NO_EVIDENCE, never="✖|▲", held=True, day=10),
    Input("slicegan", FINE, "diagnose",
        "40uf411/SliceGAN@a0124fdd12ff223b5a20618af352e036bcc69588", "output.log",
        "9a7e696274b4c72950ee7e096ee33d1d9bdb70652afa1e68b4d6b7ef6db2c9f3",
        "a GAN samples two volumes on a GPU, to the end",
        right=NO_EVIDENCE, never="✖|▲", day=10),
    Input("virab", FINE, "diagnose",
        "HEX-QWQ/virAbBench@45292c0df56c475155e519f74af2216dd1e57b01", "logs/train.log",
        "bffa9c58020243be3e8bfd210640e39ec77d1e0d576b24b1ef9aa43474d72a4c",
        (
            "trainings on a GPU, started more than once into one file; the last is at step 400 of 4000; nothing "
            "failed"
        ),
        right=NO_EVIDENCE, never="✖|▲", held=True, day=10),
    Input("bertner", FINE, "diagnose",
        "BiaoLiu2017/BERT-NER@a5f93caa9642b6bb6601ef7fde19b16ec2ad521b", "train.log",
        "5ea970cfeab744b0cfd329e238d58619fc36a08abf943567440c25938d2640d2",
        "BERT is trained and tested with TensorFlow on a GPU, with FutureWarnings, to its result",
        right=NO_EVIDENCE, never="✖|▲", day=10),
)
# fmt: on
