"""What can be asked of an export; loads nothing."""

from __future__ import annotations

PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
"""Names that people type, and those of the contract."""
FULL = PRECISIONS["fp32"]
MAX_RECALL_DROP = 0.003  # of Recall@1, 0..1: what a lower precision may cost
