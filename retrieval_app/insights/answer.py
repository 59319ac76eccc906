"""Base classes of the API's bodies and answers, computed results among them."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    """A JSON body, or a part of one."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class Answer(BaseModel):
    """A JSON answer, or a part of one."""

    model_config = ConfigDict(extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return self.model_dump()
