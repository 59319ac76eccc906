"""Base class of the API's answers, computed results among them."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """A JSON answer, or a part of one."""

    model_config = ConfigDict(extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return self.model_dump()
