"""The words of authority: what may be asked (scopes), who asks (the caller), and the development workspace.

Words only, and cheap to import: commands that sign their own development token start with these. What they allow is
`gateway.authority`'s to decide.
"""

from dataclasses import dataclass
from enum import StrEnum

from workflows.contract.ids import PrincipalId, Workspace

DEMO = Workspace("demo")
"""The workspace that development seeds."""


class Action(StrEnum):
    """The scopes of api.md. A grant names the same words."""

    JOBS_SUBMIT = "jobs:submit"
    JOBS_READ = "jobs:read"
    JOBS_CANCEL = "jobs:cancel"
    JOBS_DECIDE = "jobs:decide"
    SESSIONS_READ = "sessions:read"
    PLUGINS_PUBLISH = "plugins:publish"
    RELEASES_WRITE = "releases:write"
    PROMOTIONS_WRITE = "promotions:write"
    PROMOTIONS_APPROVE = "promotions:approve"
    PROMOTIONS_BREAK_GLASS = "promotions:break_glass"
    GRANTS_WRITE = "grants:write"
    OPERATOR_READ = "operator:read"


EVERY_SCOPE = frozenset(action.value for action in Action)


@dataclass(frozen=True)
class Caller:
    """Who a verified credential says is calling. `token_id` names the credential in audit and logs."""

    principal: PrincipalId
    workspace: Workspace
    scopes: frozenset[str]
    groups: frozenset[str]
    token_id: str
    credential: str | None = None
    """The id of the API key that was shown; None for a signed token."""
