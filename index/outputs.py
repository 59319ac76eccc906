"""Outputs of a model: `semantic` similarity, `copy` detection, and `untrained` features.

Searches use the first two. Label issues are found with `untrained`, since an output trained with labels also fits
wrong ones.
"""

SEMANTIC, COPY, UNTRAINED = OUTPUTS = "semantic", "copy", "untrained"
