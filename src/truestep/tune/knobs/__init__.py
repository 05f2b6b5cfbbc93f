"""The knobs, one file each: `KNOB` says what it is, `apply(value, tape)` turns it in the script's process."""

ORDER: tuple[str, ...] = (
    "workers",
    "threads",
    "fused",
    "allocator",
    "foreach",
    "autocast",
    "channels_last",
    "matmul_precision",
    "prefetch",
    "persistent",
    "pin_memory",
    "set_to_none",
    "cudnn_benchmark",
    "compile",
    "recompute",
    "inference_mode",
    "quantised",
)
"""The files, in the order in which knobs are tried: cheap and likely ones first, compiling last."""
