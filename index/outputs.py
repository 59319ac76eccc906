"""What can be asked of an image: of what `kind` it is, and, of models that tell it, which `picture` it is."""

from __future__ import annotations

KIND, PICTURE = "kind", "picture"
