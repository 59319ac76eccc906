"""Outputs of a model: `semantic` similarity, `copy` detection, and `untrained` features, which find label issues."""

SEMANTIC, COPY, UNTRAINED = OUTPUTS = "semantic", "copy", "untrained"
