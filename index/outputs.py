"""Outputs of a model: `semantic` similarity, `copy` detection, and `untrained` features.

Searches use the first two. Label issues are found with `untrained`, since an output trained with labels also fits
wrong ones.
"""

from __future__ import annotations

SEMANTIC, COPY, UNTRAINED = OUTPUTS = "semantic", "copy", "untrained"
