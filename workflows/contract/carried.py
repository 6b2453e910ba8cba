"""What every model inside a history has in common: frozen, and tolerant of fields it does not know."""

from pydantic import BaseModel, ConfigDict


class Carried(BaseModel):
    """The common configuration of models inside histories."""

    model_config = ConfigDict(frozen=True, extra="ignore")
