"""Traces, evidence of machines and memory snapshots that were found on a third day."""

from __future__ import annotations

from benchmarks.field.input import ALIEN, GRAPH, NCCL, NO_GPU, ONE, SNAPSHOT, TESTS, XML, Input

# fmt: off
THIRD_FILES: tuple[Input, ...] = (
    Input("ipc_horovod785", NCCL, "doctor",
        "horovod/horovod#785",
        "log.txt",
        "d0b660de47327e238ab062aef6cf3278e61281b505567feebd7961e2870865b0",
        (
            "an old NCCL between two containers of one host: memory of a peer could not be opened (peer access "
            "is not supported, invalid argument), so init failed"
        ),
        abstains="NCCL itself warned: failed to open CUDA IPC handle : 64 peer access is not supported",
        never="✔|▲|✖", held=True, day=3),
    Input("rccl_iommu1026", NCCL, "doctor",
        "ROCm/rccl#1026",
        "log.txt",
        "3aa9c06fe5c2316663844af7b4aeac421203c84c6d47bf09498da11c13c17156",
        (
            "RCCL 2.16.5 on an MI250X node over bond0; RCCL itself warns that amd_iommu=on, iommu=pt and "
            "HSA_FORCE_FINE_GRAIN_PCIE=1 are missing; no connection is told"
        ),
        right="NCCL itself warned: Missing \"amd_iommu=on\"", never="✔|▲|✖", held=True, day=3),
    Input("rccl_7900_1055", NCCL, "doctor",
        "ROCm/rccl#1055",
        "log.txt",
        "7e7ff8f90385b4e669b46b70619ecad7f52eba95f7cce15e8c87ad662154739b",
        "RCCL 2.18.3 in a container with two 7900 XTX begins its setup over eth0; no connection is told",
        right=r"RCCL 2\.18\.3.*communication was not tested", never="✔|▲|✖", held=True, day=3),
    Input("nccl_stamped1647", NCCL, "doctor",
        "NVIDIA/nccl#1647",
        "log.txt",
        "a2a41bc500b1e282b435fa7f9c1b8d5ccf29c629150bf136f4e992e416440f62",
        (
            "one pod of two GB200 pods of one rank each: NCCL 2.26.2, no libibverbs, so sockets over eth0 in "
            "the bootstrap; no connection is told"
        ),
        right="communicator of 2 ranks; its network is Socket on eth0.*not tested", never="✔|▲|✖", held=True, day=3),
    Input("h800_small183", TESTS, "doctor",
        "NVIDIA/nccl-tests#183",
        "log.txt",
        "36bf8c891948210a896b2308d2c71b3e5b8abfe3b4bb7a8dfff6504809aebd28",
        (
            "broadcast of nccl-tests on 2 H800 of one host, only the first four sizes (8 to 64 B): 21 to 144 "
            "µs, nothing about bandwidth"
        ),
        right=r"144\.3 µs at 8 B; no message was large enough", never=r"✔|▲|✖|\b0 GB/s", held=True, day=3),
    Input("jax_2x2_13559", NCCL, "doctor",
        "jax-ml/jax#13559",
        "log.txt",
        "17dc13ea3d7e8e6a284647ae70f06b1ba4dc14dc67de709ee080f158aa1a5fb5",
        (
            "JAX on 2 hosts of 2 GPUs: InfiniBand with GPUDirect RDMA between the hosts, P2P within; the log "
            "is of rank 0 alone and says nothing wrong"
        ),
        right="1 communicator of 4 ranks.*P2P/IPC.*NET/IB/GDRDMA.*not tested", never="✔|▲|✖", day=3),
    Input("l40_timeout", TESTS, "doctor",
        "aidando73/nccl-tests#errors.txt",
        "log.txt",
        "2c5752d7f002a0cd8a1baa6c60d6c47d0009c06cbd37afc589332a896575549c",
        (
            "4 L40 on 2 hosts over sockets: the first all-reduce failed or timed out (10 s), no size has a "
            "result; NCCL found no IB and used P2P within the host"
        ),
        right=r"began and has no result: it says 'Test timeout \(10s\)'", abstains="NCCL itself warned",
        never="✔|Nothing wrong", day=3),
    Input("l40_socket_small", TESTS, "doctor",
        "aidando73/nccl-tests#results.log",
        "log.txt",
        "fb78f34b37ffe220afeb156bc92760dbed9063ad7f5feeec8b276e9e36529eb0",
        (
            "2 L40 on 2 hosts over sockets, all-reduce of 8 to 256 B takes 10 ms each, 100 times what a "
            "network takes: the connection is slow"
        ),
        right=r"takes 10\.0 ms for 8 B", never=r"✔|Nothing wrong|\b0 GB/s", held=True, day=3),
    Input("h100_sharp", TESTS, "doctor",
        "togethercomputer/together-nccl-tests#all_reduce_sharp_collnet.out",
        "log.txt",
        "dccf0acaf37b603a53dfce160499df7974160910e465b3a13d4c42e415544ef0",
        (
            "8 H100 of one host, all-reduce 368 GB/s at 8 GiB, 35 µs at 8 B, right values: below NVLS (480) as "
            "rings give"
        ),
        right="8 GPUs.* 368 GB/s at 8 GiB", never="✔|▲|✖", day=3),
    Input("a6000_topo", XML, "doctor",
        "cuiboyuan/nccl_miner#sim_csl_3_gpu.xml",
        "topo.xml",
        "33f892e7f40487a0e4b5aa8221879a87bb8c3fb56728ed8dc2b1532885205439",
        (
            "3 RTX A4500 in a workstation, two on NUMA node 0 and one on node 1, PCIe 3.0, no NVLink; two 1 "
            "Gb/s network devices and Docker's bridges"
        ),
        right="3 GPUs, 5 network devices on 2 NUMA nodes.*Between NUMA nodes: SYS", never="✔|▲|✖|NVLink", day=3),
    Input("cyc_cpu", NO_GPU, "analyze",
        "Cryptheon/CyclicRouter@2c8a564f7f4efc0f8f907593f7bcb1e327ab5ffe",
        "trace.json",
        "5b0b733fa1724df86409c8133f1afebcbc4089c3bf15e2237e49cca27bd872b0",
        "a CPU's forward pass: 367 operators in 12.8 ms, no GPU, no step marked",
        abstains="Not judged: .*the traces hold no GPU activity", never="✔|✖|▲", held=True, day=3),
    Input("gpum_fp16", ONE, "analyze",
        "JeremyMorlier/GPUModel@cc353e8f5ee390be8ebf7034f2c3fecd8186c4c4",
        "trace.json",
        "2c96ad5ce536a22d8ae2cb3ffcc8f93539ab63bc10f770b803b4b6337d728f36",
        (
            "5 matrix products of 15.7 ms on an A100, back to back: busy 78.6 of 84.1 ms, no step marked; the "
            "host waits in cudaDeviceSynchronize"
        ),
        right=r"the window takes 78\.6 ms, 100 % of it compute", never="✖|▲|a step (takes|would take)", day=3),
    Input("gpum_double", ONE, "analyze",
        "JeremyMorlier/GPUModel@cc353e8f5ee390be8ebf7034f2c3fecd8186c4c4",
        "trace2.json",
        "c048ac3b0c2358fd362db5d7a9af3fdaafb9460967cea981269599f39dafa876",
        "5 matrix products of 117 ms on an A100, back to back: busy 585 of 588 ms, no step marked",
        right="the window takes 585 ms, 100 % of it compute", never="✖|▲|a step (takes|would take)", day=3),
    Input("kf_conv_cpu", NO_GPU, "analyze",
        "marcalph/kernelforge@fc016e8f4cc6133927d70e1913ca6ef6a2c71ec2",
        "chrome_trace.json",
        "96cd3575c515a95dc8e5f28d95a3d1af0913d3dcd2447a3d8ed5570d58d61b69",
        (
            "a convolution net's inference on a CPU: 127 ms, 526 operators and memory events, no GPU, no step "
            "marked"
        ),
        right="the window takes 126 ms, 98 % of it compute", never="✖|▲|a step (takes|would take)", held=True, day=3),
    Input("kf_t4", ONE, "analyze",
        "marcalph/kernelforge@fc016e8f4cc6133927d70e1913ca6ef6a2c71ec2",
        "log/bfeed93fe629_2566.1773933981558265129.pt.trace.json",
        "1b128ef26c453763abe9573df3a916a249f4eb378e6cd44dc3f4b39aa178296a",
        (
            "a product on a T4, three marked steps of 13.8, 11.1 and 11.9 ms: the host draws random numbers "
            "for 10 ms of each, the kernel of 6.9 ms runs mostly in the next step"
        ),
        right=r"waits for its host to launch kernels for 3\.76 ms of each 11\.6 ms step", never="✔", day=3),
    Input("kf_gh200", ONE, "analyze",
        "marcalph/kernelforge@fc016e8f4cc6133927d70e1913ca6ef6a2c71ec2",
        "lambda-logs/log/transformer/192-222-51-72_4336.1774353536539013415.pt.trace.json",
        "3879ad6485d735ad120352c9280051cabe716be57809cd375d75e9143602d196",
        (
            "a small attention on a GH200, three steps of 1.28, 1.13 and 1.10 ms, GPU busy 0.41 ms of each: "
            "the host launches too slowly"
        ),
        right=r"waits for its host to launch kernels for 0\.746 ms of each 1\.17 ms step",
        abstains=r"Not judged: 64 % of the step: idle: launched late, because recording may be", never="✔", day=3),
    Input("jc_cpu", NO_GPU, "analyze",
        "JC-me-coding/dtu_mlops@9829b4794b3bfda5368b8ba81089fe9836509bff",
        "trace.json",
        "b323a7e6080ada17f22701ec3bbe0fda623dbfbd87ba86addfde24df88420297",
        "ResNet on a CPU by an old torch: 466 operators in 503 ms, no step marked",
        right="the window takes 479 ms, 98 % of it compute", never="✖|▲|a step (takes|would take)", held=True, day=3),
    Input("darth_cpu", NO_GPU, "analyze",
        "DarthShoge/Crypto_CNN@1cece71e658cf43411a5540f172328ead15f7041",
        "trace.json",
        "98c2ef3f361abe3734890e2e5ac555987ddcdf30cf6d4c16d401f31ff798a53e",
        "a convolution net's inference on a CPU, 95 operators in 461 ms, no step marked",
        right="the window takes 453 ms, 99 % of it compute", never="✖|▲|a step (takes|would take)", held=True, day=3),
    Input("ebpf_cuda", ALIEN, "analyze",
        "floritange/ebpf_cuda_monitoring@ccde05c61a4139998707b011da8eb9ab16c1771c",
        "chrome_trace.json",
        "d901293ca7451e0995a6f7632630e9fb8b8ca6f4c889333f4f0ae230952fc0f3",
        "CUDA driver calls that eBPF saw: 36 events without categories, nothing of torch",
        right="it is a Chrome trace", never="✔", day=3),
    Input("x2_list", ALIEN, "analyze",
        "umaumax/x2trace@6a8ab7745874b577f35ec8a1515b4c8045317760",
        "example.json",
        "68034bb07cde18904fb15d6f8455778a97a6e45efca54a203cd9f09abc786095",
        "a list of events of another tool's example, nothing of torch",
        right="it is a Chrome trace", never="✔", held=True, day=3),
    Input("x2_begin_end", ALIEN, "analyze",
        "umaumax/x2trace@6a8ab7745874b577f35ec8a1515b4c8045317760",
        "chrome_trace.json",
        "9fa90a77489ccbba0a2e2d11bf462c7637df6c4176cfc209e676c61f2ad5733e",
        "ten begin and end events of another tool, nothing of torch",
        right="it is a Chrome trace", never="✔", day=3),
    Input("chakra_small", ALIEN, "analyze",
        "mlcommons/chakra#tests/data/json_trace.tar.gz",
        "small_chakra.0.json",
        "1f0a80abfda637be6a388fdd7546ea88d1d3cdc8beb2cde63b1ac1a2f8b99d5f",
        "a graph of Chakra's own JSON, no trace",
        right="there is no \"traceEvents\" list", never="✔", day=3),
    Input("pfw_ranks", ALIEN, "analyze",
        "argonne-lcf/dl_scaling@f09626eb2414b91e49251d1f4a40d8f780934339",
        tuple(f"cosmoflow_pytorch/pfw/.trace-{n}-of-4.pfw" for n in range(4)),
        "fd2c0f6739d1a3aa51c029d7cc2a32aefca0f1c789cfb83553647f8739f5073c",
        (
            "file reads and computing of 4 processes as DLIO/DFTracer writes it: lines of JSON after a "
            "bracket, nothing of torch"
        ),
        right="holds no traces", never="✔", held=True, day=3),
    Input("yccl_a6000", XML, "doctor",
        "zy-uestc/yccl@d76a1b034e709ce0cd667c62d95a49b5d4bb2832",
        "topo.xml",
        "9215ff87f276bbfc63d4d229df496f60c65c49f8425252fd4201258a749b760e",
        "4 RTX A6000 on PCIe 3.0, two a NUMA node, no NVLink; 1 Gb/s network devices and Docker's",
        right="4 GPUs, 10 network devices on 2 NUMA nodes.*Between NUMA nodes: SYS", never="✔|▲|✖|NVLink", held=True,
        day=3),
    Input("yccl_l20", XML, "doctor",
        "zy-uestc/yccl@d76a1b034e709ce0cd667c62d95a49b5d4bb2832",
        "topo_l20.xml",
        "319147654ffac25ac41dc4c9a934bce0af85d0f30fa26b2a211f4b1ebaac5dac",
        "16 L20 in one host, eight a NUMA node behind switches, 8 BlueField NICs of 400 Gb/s, no NVLink",
        right="16 GPUs, 8 network devices on 2 NUMA nodes", never="✔|▲|✖|NVLink", day=3),
    Input("yccl_h800", XML, "doctor",
        "zy-uestc/yccl@d76a1b034e709ce0cd667c62d95a49b5d4bb2832",
        "topo_h800.xml",
        "3485781f5e612621d9003a4bcf7bb8368f606c9b28658e26f8643d70349cb82a",
        "8 H800 with 8 NVLinks each to 4 NVSwitches, 8 NICs of 400 Gb/s",
        right=r"8 GPUs, 8 network devices on 2 NUMA nodes\. NVLink between all GPUs: NV8", never="✔|▲|✖", held=True,
        day=3),
    Input("yccl_graph", GRAPH, "doctor",
        "zy-uestc/yccl@d76a1b034e709ce0cd667c62d95a49b5d4bb2832",
        "graph.xml",
        "7bd4b5cf735864e069f3a52f673720ced6c5cececb117038f37a72f04eefc810",
        "NCCL's rings and trees of 4 GPUs over SYS: one channel of 10 GB/s",
        right="GB/s", abstains="communication was not tested", never="▲|✖", day=3),
    Input("yccl_fails", NCCL, "doctor",
        "zy-uestc/yccl@d76a1b034e709ce0cd667c62d95a49b5d4bb2832",
        "test.log",
        "bad5f5cdea95aaf3b8ad3f47aa853d549283f1e0d3e952372333dfcda3c8ab29",
        (
            "a changed NCCL on 4 A6000: all_gather fails on all four because no transport is found between "
            "them; no size has a result"
        ),
        right="No transport found .*began and has no result: it says .Test NCCL failure all_gather",
        abstains="NCCL itself warned: No transport found", never="✔|▲|Nothing wrong", day=3),
    Input("yccl_shm", TESTS, "doctor",
        "zy-uestc/yccl@d76a1b034e709ce0cd667c62d95a49b5d4bb2832",
        "test2.log",
        "c04cda1fe71fa2a86e33460e911c1c4d9d1285d7a49b15ffbf836916bd6831d2",
        "the same machine, repaired: shared memory between all four, all_gather with an average of 7 GB/s",
        right=r"SHM/direct for 4 connections.*8\.3 GB/s at 1 GiB", never="✔|▲|✖", day=3),
    Input("raddet_torn", NCCL, "doctor",
        "1602615899/RADDet@74fcbce5612c302297f38a2ac34042bccf384d2c",
        "nccl_debug.log",
        "95a0b621be462e50bedf42e0657c88cdec19b13d7ed3cf9a988d91b2d0b97bb6",
        "2 GPUs of one host wrote one file at once, so lines are torn: SHM between them, no IB, both complete",
        right="1 communicator of 2 ranks.*SHM/direct.*not tested", never="✔|▲|✖", day=3),
    Input("hwloc_topo", XML, "doctor",
        "bratpiorka/misc@2fea6f5534c4052e6a68354cb3aac41094684468",
        "topo.xml",
        "98cd30197b9110aa223024977b9e54e97e5aad698e38884344295afac37dc2fb",
        "hwloc's topology of a server, not NCCL's: no GPU of NCCL in it",
        right="holds no topology matrix, no NCCL lines", never="✔", held=True, day=3),
    Input("cs336_forward", SNAPSHOT, "memory",
        "kkaitlyn111/cs336-a2-systems@c1272e189aa1b8ab6b0a02e08f3f2be1ae122c39",
        "memory_files/memory_ctx128_forward.pickle",
        "fe793a5d0ca520b7a9e0cb9cbad5f360a845d880aa636609034e2685d0b012ed",
        (
            "18,756 MiB reserved, 18,595 of it allocated at the end; 13,136 before the recorded events; it "
            "only grows"
        ),
        right=r"tensors hold 18\.16 GiB at the peak.*18\.32 GiB are reserved: 18\.16 GiB in use", never="✔|ran out",
        day=3),
    Input("cs336_fullstep", SNAPSHOT, "memory",
        "kkaitlyn111/cs336-a2-systems@c1272e189aa1b8ab6b0a02e08f3f2be1ae122c39",
        "memory_files/memory_ctx256_fullstep_.pickle",
        "d5d79d593735581f68717b678be4de8f6d3ce69f77ec25d38a316a153562cca4",
        "58,198 MiB reserved, 52,220 allocated at the end, from 13,193 before; peak 52,415",
        right=r"tensors hold 51\.19 GiB at the peak.*56\.83 GiB are reserved: 51\.00 GiB in use", never="✔|ran out",
        day=3),
    Input("wedson_infer", SNAPSHOT, "memory",
        "Wedsonlin/assignment2-systems@87b086417ea831f54f7535eb3680f90da0952722",
        "results/medium_128_inference_memory_snapshot.pickle",
        "f8db6a7626da4c459c255de540c9983246049ef8c3f69141c7c70c98ef9b56d8",
        "1,682 MiB reserved; 1,624 held before and after the recorded events, peak 1,658: steady",
        right=r"tensors hold 1\.62 GiB at the peak.*1\.64 GiB are reserved: 1\.59 GiB in use", never="✔|ran out",
        day=3),
    Input("wedson_train", SNAPSHOT, "memory",
        "Wedsonlin/assignment2-systems@87b086417ea831f54f7535eb3680f90da0952722",
        "results/medium_256_training_memory_snapshot.pickle",
        "bf5a87e51ec534f0eb643bf310cf5b6153de7a79f35741ca0e20af15253acb25",
        "8,836 MiB reserved; 4,868 before and 6,521 after the recorded events, peak 8,690",
        right=r"tensors hold 8\.48 GiB at the peak.*8\.63 GiB are reserved: 6\.37 GiB in use", never="✔|ran out",
        held=True, day=3),
    Input("ftcourse_snap", SNAPSHOT, "memory",
        "cranberrii/ftcourse@a8cedf28ee118bdd0d50773780885e0e3a4bf027",
        "memory_snapshot.pickle",
        "158e643af74ea1218210b047f4e7d68c1826b936e8d692a577430e39ca509bfd",
        "6,172 MiB reserved, 2,191 allocated at the end, 1,056 before; peak 5,615",
        right=r"tensors hold 5\.48 GiB at the peak.*6\.03 GiB are reserved: 2\.14 GiB in use", never="✔|ran out",
        held=True, day=3),
)
