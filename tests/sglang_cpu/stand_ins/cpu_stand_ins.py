"""A plugin of SGLang 0.5.23 that lets it speculate on a CPU with the stand-ins beside it. It hooks private names, so
that it fits this version only. Loaded by SGLANG_PLUGINS=cpu_stand_ins."""


class _Platform:
    """The platform that SGLang found, with speculation allowed on it."""

    def __init__(self, found):
        self.__dict__["found"] = found

    def __getattr__(self, name):
        return getattr(self.found, name)

    def is_out_of_tree(self):
        return True

    def supports_speculative_algorithm(self, algorithm):
        return True

    def supports_speculative_draft_attention_backend(self, algorithm, backend):
        return backend == "intel_amx"

    def get_default_speculative_draft_attention_backend(self, algorithm):
        return "intel_amx"


def register():
    import torch
    from sglang.srt import runtime_context
    from sglang.srt.arg_groups import choices, speculative_hook
    from sglang.srt.speculative.dflash_info import DFlashVerifyInput

    # Without AMX, SGLang would change the attention backend to one that has no operators on a CPU.
    runtime_context._PLATFORM._install(has_amx=True)
    choices.add_draft_attention_backend_choices(["intel_amx"])
    speculative_hook.current_platform = _Platform(speculative_hook.current_platform)
    torch.Tensor.record_stream = lambda self, stream: None  # of CUDA only
    DFlashVerifyInput.tree_topk = 1
