"""Crashes that the program caused: its own errors, and torch used in a way that it refuses."""

from __future__ import annotations

from traceops.core.rule import Rule

SCRIPT_ERROR = Rule(
    id="TO-E005",
    title="The program raised an error",
    fires=(
        "The first failure in a log is an exception of the program: an import, an assertion, or another "
        "that is of no "
        "other rule's kind."
    ),
    advice=(
        "Read the traceback at the line given: this is an error of the program, and errors of other "
        "ranks about lost "
        "connections follow from it."
    ),
    by_cause=(
        (
            "import_error",
            "The rank's environment lacks the module, or it was built for another torch (undefined "
            "symbol: reinstall "
            "it against the torch in use). Check which Python each rank runs (torchrun and python of one "
            "environment, "
            "on every host).",
        ),
        (
            "nan_loss",
            "Find the first value that is not finite: torch.isfinite of each batch and of the loss; in a short run "
            "torch.autograd.set_detect_anomaly(True) names the operation whose gradient is NaN. Then a lower learning "
            "rate, gradient clipping, bf16 in place of fp16.",
        ),
        (
            "loss_scale",
            "Even at the lowest loss scale gradients or their norm were inf or NaN; whether the loss is finite is not "
            "told. Train in bf16 in place of fp16 (it needs no loss scale) where the GPU has it; else a lower learning "
            "rate or a longer warmup, gradient clipping. Look for inf or NaN in the last batches and in the weights "
            "that were loaded.",
        ),
        (
            "bus_error",
            "Most often /dev/shm is full: NCCL and data-loader workers map files there (df -h /dev/shm). Give the "
            "container more: docker run --shm-size=16g or --ipc=host; in Kubernetes an emptyDir with medium: Memory. "
            "Else a file that was mapped and then cut short, on a disk or network file system.",
        ),
        (
            "native_crash",
            "Compiled code crashed. PYTHONFAULTHANDLER=1 shows the Python line, a core dump in gdb the "
            "rest; suspect "
            "extensions that were built for another torch. SIGABRT is also how torch's watchdog ends a rank whose "
            "collective timed out: look for 'Watchdog caught' in every rank's output.",
        ),
        (
            "state_dict",
            "Compare the configuration that the checkpoint was trained with. 'module.' in front of all names comes "
            "from DDP: save model.module.state_dict(). Under FSDP, ZeRO or tensor parallelism a size that differs by "
            "the number of parts is a shard's: gather the state before saving, or load it with "
            "torch.distributed.checkpoint.",
        ),
        (
            "broken_file",
            "The file is cut off, or a pointer of Git LFS, or a web page saved under its name: compare its size "
            "with the original's, and download it again (git lfs pull). A checkpoint that a crash interrupted is "
            "incomplete: use the one before it.",
        ),
        (
            "loader_died",
            "Run once with num_workers=0: then the error of the data set is raised in the main process, with its "
            "traceback. If that works, the workers ran out of memory or of /dev/shm (dmesg).",
        ),
        (
            "actor_died",
            "Ray says only that the actor's process is gone. Its own output has why: worker-*-PID.err and .out in "
            "/tmp/ray/session_latest/logs on its node. dmesg there tells whether the kernel killed it for its memory.",
        ),
    ),
)

MISUSE = Rule(
    id="TO-E006",
    title="torch was used in a way that it refuses",
    fires="The first failure in a log is a message of torch that has one known cause and cure.",
    advice="See the cause.",
    by_cause=(
        (
            "scaler_bf16",
            "bf16 has the range of fp32 and needs no GradScaler: remove it, or make it "
            "GradScaler(enabled=False). If fp16 "
            "was meant, the parameters must be fp32 (autocast to float16), not bf16.",
        ),
        (
            "scaler_fp16",
            "Keep the parameters in fp32 and let autocast use fp16 (no model.half()), or train in bf16 without a "
            "GradScaler.",
        ),
        (
            "models_differ",
            "All ranks must build the same model: a branch by rank, a vocabulary or number of classes that comes "
            "from each rank's own share of the data, a checkpoint that only some ranks loaded, frozen layers on "
            "some.",
        ),
        (
            "dtypes_differ",
            "Bring both to one dtype: x.to(layer.weight.dtype), or run the forward pass under torch.autocast. "
            "model.half() or .bfloat16() does not convert inputs and new tensors.",
        ),
        (
            "index_range",
            "An index or label is at least as large as the table: compare the tokenizer's length with the "
            "embedding's size (model.resize_token_embeddings(len(tokenizer))), and labels with num_classes; -100 "
            "is what cross_entropy ignores.",
        ),
        (
            "leaf_inplace",
            "Change parameters under torch.no_grad(), or through parameter.data; else write x = x + 1 in place "
            "of x += 1.",
        ),
        (
            "backward_twice",
            "Sum the losses and call backward() once. A hidden state that is carried from batch to batch needs "
            ".detach(). Use retain_graph=True only if you really need the same graph twice.",
        ),
        (
            "no_gradient",
            "The loss was computed under torch.no_grad() or inference_mode(), from detached tensors, or all "
            "parameters are frozen: some parameter needs requires_grad=True. With reentrant checkpointing the "
            "input needs a gradient: use_reentrant=False, or model.enable_input_require_grads().",
        ),
        (
            "nothing_to_train",
            "Do not wrap a model without parameters that have requires_grad=True; unfreeze what is to be trained "
            "before DDP wraps it.",
        ),
        (
            "no_group",
            "Call torch.distributed.init_process_group() before the first collective, start the script with "
            "torchrun, and call destroy_process_group() last.",
        ),
        (
            "no_backend",
            "Move the tensor to the rank's device first (NCCL takes CUDA tensors only), or make the group for both: "
            "init_process_group('cpu:gloo,cuda:nccl').",
        ),
        (
            "unpicklable",
            "Move the function or class to the top of a module (lambdas and nested functions cannot be pickled), "
            "or bind its arguments with functools.partial; with multiprocessing_context='fork' nothing is "
            "pickled.",
        ),
        (
            "batch_norm",
            "The last batch has one sample on this rank: drop_last=True in the DataLoader, a larger "
            "batch per GPU, or "
            "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model).",
        ),
        (
            "cuda_fork",
            "A process that was forked after CUDA was used cannot use it. Keep CUDA out of data-loader "
            "workers (move "
            "batches in the main process), or start them with multiprocessing_context='spawn' "
            "(DataLoader) or "
            "torch.multiprocessing.set_start_method('spawn') under if __name__ == '__main__'.",
        ),
        (
            "unused_parameters",
            "Use all parameters in the loss, freeze those that are not used, or pass "
            "find_unused_parameters=True to DDP "
            "(it costs a walk of the graph each step). TORCH_DISTRIBUTED_DEBUG=DETAIL names the parameters.",
        ),
        (
            "ready_twice",
            "Activation checkpointing that runs a part twice, or a parameter used in several backward "
            "passes: use "
            "use_reentrant=False, or static_graph=True in DDP.",
        ),
        (
            "shared_view",
            "Call .clone() (or .contiguous()) on the tensor before it is written to: expand and views "
            "share memory, and "
            "DDP writes buffers in place (broadcast_buffers).",
        ),
        (
            "modified_inplace",
            "If it comes only with several GPUs: DDP writes buffers in each forward pass, and two of them before "
            "one backward change what the first needs. DDP(model, broadcast_buffers=False), or one forward for "
            "all inputs. Else an operation of the program: torch.autograd.set_detect_anomaly(True) names it.",
        ),
        (
            "load_device",
            "torch.load(FILE, map_location='cpu'), or map_location=f'cuda:{local_rank}': without it each rank "
            "loads to the GPU that saved it.",
        ),
        (
            "two_devices",
            "Something was made with .cuda() or on 'cuda:0' on every rank: call torch.cuda.set_device(local_rank) "
            "first, and make new tensors with device=x.device. Buffers belong to the module (register_buffer).",
        ),
    ),
)
