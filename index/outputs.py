"""The outputs of a model: what `kind` an image is, which `picture` it is, and features that saw no label.

A search asks by the first two. Labels are judged by `untrained`: to an output that was trained with labels, wrong ones
that it has learnt look right.
"""

from __future__ import annotations

KIND, PICTURE, UNTRAINED = OUTPUTS = "kind", "picture", "untrained"
