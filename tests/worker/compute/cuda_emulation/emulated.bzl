"""How CUDA code is compiled against the emulation."""

EMULATED = [
    "-Itests/worker/compute/cuda_emulation/include",
    # A namespace of its own (weir::cuda otherwise), so that the real code may be in the same program.
    "-Dcuda=cuda_on_emulation",
    "-DWEIR_CUDA",
    # Its longjmp refuses to go from stack to stack.
    "-U_FORTIFY_SOURCE",
]
