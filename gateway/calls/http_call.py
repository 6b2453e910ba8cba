"""Tools of kind `http`: one request through the door, and its reply as an outcome that is free of the credential."""

from gateway.allowlist import CredentialPolicy
from gateway.calls.callbacks import ACCEPTED, HEADER, WaysBack
from gateway.calls.egress import BeforeBytes, Door, OutboundCall, ReplyTooLarge
from gateway.calls.http_tool import ToolOutcome, build_request
from gateway.calls.kinds import Exchange, Prepared, Proposed, Stamp, inject
from gateway.calls.replies import MAX_RESULT_BYTES, outcome_of, outcome_too_large
from workflows.contract.job import EffectClass


class HttpCalls:
    """One per process."""

    def __init__(self, door: Door, credentials: CredentialPolicy, ways_back: WaysBack) -> None:
        self._door = door
        self._credentials = credentials
        self._ways_back = ways_back

    async def judge(self, proposed: Proposed) -> EffectClass:
        """Arguments such as `..` in the path make no request: the model is told, and no person is asked."""
        http, connection = proposed.tool.http, proposed.connection
        assert http is not None
        assert connection is not None
        build_request(http.method, http.path, connection.base_url, proposed.args)
        return proposed.tool.effect

    async def ready(self, prepared: Prepared) -> Exchange:
        http, connection = prepared.tool.http, prepared.connection
        assert http is not None
        assert connection is not None
        request = build_request(http.method, http.path, connection.base_url, prepared.args)

        async def exchange(stamp: Stamp, before_bytes: BeforeBytes | None) -> ToolOutcome:
            headers = stamp.headers(prepared)
            if request.body is not None:
                headers["Content-Type"] = "application/json"
            injection = inject(self._credentials, connection, prepared.attempt.workspace)
            scrubber = injection.scrubber
            way_back = await self._ways_back.open(prepared, stamp, injection.value)
            if way_back is not None:
                headers[HEADER] = way_back.url
                scrubber = scrubber.also(way_back.token)
            call = OutboundCall(
                method=http.method,
                url=request.url,
                headers={**headers, **injection.headers},
                body=request.body,
                allow_private=connection.allow_private,
                timeout_s=prepared.time_s,
                max_bytes=MAX_RESULT_BYTES,
            )
            try:
                reply = await self._door.send(call, before_bytes=before_bytes)
            except ReplyTooLarge as failure:
                if way_back is not None and failure.status == ACCEPTED:
                    return ToolOutcome("pending", ACCEPTED, until=way_back.expires_at)
                return outcome_too_large(prepared.effect, failure)
            if way_back is not None and reply.status == ACCEPTED:
                return ToolOutcome("pending", ACCEPTED, until=way_back.expires_at)
            return outcome_of(prepared.effect, reply, scrubber)

        return exchange
