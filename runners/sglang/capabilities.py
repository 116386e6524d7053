"""First version of SGLang that can do something, where no flag tells; read from the sources of 0.5.16 to 0.5.23."""

from __future__ import annotations

from runners.sglang.version import of

DSPARK_DRAFT_MODEL = of("0.5.17")
"""The architecture ``DSparkDraftModel``; before, DSPARK loads ``Qwen3DSparkModel`` only."""
DFLASH_SIMULATES_ACCEPTANCE = of("0.5.17")
"""``SGLANG_SIMULATE_ACC_LEN`` acts on DFLASH; before, it is ignored without a word. DSPARK and EAGLE: always."""
REPLAYSSM_FOR_ALL = of("0.5.17")
"""ReplaySSM runs with the extra_buffer strategy, a 16-bit state and the flashinfer decode backend, and refuses DFLASH
and DSPARK on a GDN target; 0.5.16 does none of it."""
DFLASH2 = of("0.5.19")
"""The architecture ``DFlash2DraftModel``."""
EAGLE_DRAFT_WINDOW = of("0.5.21")
"""The draft window acts on EAGLE and MTP; before, on DFLASH and Llama EAGLE-3 only."""
DFLASH_ATTENTION_DP = of("0.5.23")
"""DFLASH runs with attention data parallelism."""
