"""What approvers do: see what waits for a person, and decide exactly what was shown.

`decide` fetches the request, shows the tool and its arguments in full, and sends the digest of what it showed: if the
action is another one by then, the API refuses.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

from gateway.cli import render
from gateway.cli.client import Json, Rejected, job_path, segment
from gateway.cli.options import DataDir, JobArgument, JsonOutput, Verbose, enter
from gateway.cli.render import Voice

Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="GROUP", help="Development token only: groups of the approver, default: as asked."),
]
WHAT_TO_FIND_OUT = (
    "This call was sent once, and its answer was lost. It is not sent again by itself.",
    "Look in the other system whether it took effect, then settle with --answer:",
    "  happened        it took effect: the job goes on",
    "  did_not_happen  it did not: the model is told so, and may ask for it anew",
    "  stop            nobody can tell: the job ends, and the effect stays unknown",
)


def requests(data: DataDir = None, json_output: JsonOutput = False, verbose: Verbose = False) -> int:
    """List what waits for a person: approvals, questions, and effects whose outcome is not known."""
    voice, gateway = enter("approver", data, json_output, verbose)
    reply = gateway.get("/v1/requests", {"state": "pending"})
    voice.document(reply.text)
    waiting: list[Json] = reply.json["data"]
    if not waiting:
        voice.say("Nothing waits for a person.")
        return 0
    voice.rows(
        ("JOB", "REQUEST", "KIND", "EXPIRES", "TITLE"),
        [
            (each["job_id"], each["request_id"], each["kind"], str(each.get("expires_at"))[:19] + "Z", each["title"])
            for each in waiting
        ],
    )
    if voice.lively:
        voice.say("See one in full, or decide it: jobgate decide JOB REQUEST", "dim")
    return 0


def decide(
    job: JobArgument,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="The request id, as in r1-4fa0c2.")],
    verdict: Annotated[
        Literal["approve", "reject", "answer", "settle"] | None,
        typer.Argument(metavar="approve|reject|answer|settle", help="Left out: the request is shown, and stays open."),
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; with reject the model is told.")] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            "--answer",
            metavar="JSON|TEXT",
            help="For answer: JSON, else taken as text. For settle: happened, did_not_happen or stop.",
        ),
    ] = None,
    digest: Annotated[
        str | None, typer.Option("--digest", help="The action digest that was shown elsewhere; default: shown here.")
    ] = None,
    group: Groups = None,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Decide a request: show what is to be decided and decide that, nothing else.

    Without a verdict it only shows the request, with the command that decides exactly what was shown.
    """
    if verdict in ("answer", "settle") and answer is None:
        raise typer.BadParameter(f"{verdict} needs --answer", param_hint="--answer")
    voice, gateway = enter("approver", data, json_output, verbose, group or ())
    path = f"{job_path(job)}/requests/{segment(request)}"
    found = gateway.get(path)
    asked = found.json
    show_request(voice, asked)
    if verdict is None:
        voice.document(found.text)
        if asked["state"] == "pending":
            voice.say(f"{render.decide_hint(job, request, asked['kind'])} --digest {asked['action_digest']}", "dim")
        return 0
    if gateway.signs_itself and not group:
        gateway.join(_groups(asked))
    reply = gateway.post(
        f"{path}/decision",
        {
            "decision": verdict,
            "action_digest": digest if digest is not None else asked["action_digest"],
            "answer": _answer(answer, asked),
            "reason": reason,
        },
    )
    voice.document(reply.text)
    if reply.status == 202:
        voice.say("Recorded; no worker has confirmed it yet. The job goes on when one runs.", "yellow")
    else:
        _verdict(voice, reply.json)
    return 0


def settle(
    job: JobArgument,
    effect: Annotated[str, typer.Argument(metavar="EFFECT", help="The effect id, as `jobgate inspect JOB` shows it.")],
    answer: Annotated[
        Literal["happened", "did_not_happen"],
        typer.Argument(metavar="happened|did_not_happen", help="What the other system says of that Idempotency-Key."),
    ],
    reason: Annotated[str | None, typer.Option("--reason", help="How it was found out; kept with the word.")] = None,
    group: Groups = None,
    data: DataDir = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Say what came of a write that a job, which has ended, left unknown; then it can be retried.

    While the job is open it asks by itself: jobgate requests.
    """
    voice, gateway = enter("approver", data, json_output, verbose, group or ())
    path = f"{job_path(job)}/effects/{segment(effect)}/settlement"
    word = {"answer": answer, "reason": reason}
    try:
        reply = gateway.post(path, word)
    except Rejected as refused:
        if not (gateway.signs_itself and refused.code == "not-an-approver") or group:
            raise
        gateway.join(refused.reply.json["groups"])
        reply = gateway.post(path, word)
    voice.document(reply.text)
    came = "took effect" if reply.json["answer"] == "happened" else "did not take effect"
    voice.say(f"{reply.json['tool']} {came}, says {', '.join(reply.json['decided_by'])}", "bold")
    voice.say(f"jobgate retry {job}", "dim")
    return 0


def show_request(voice: Voice, asked: Json) -> None:
    """Everything the digest covers, who may decide until when, who has, and what is still missing."""
    voice.say(f"{asked['kind']} {asked['request_id']}: {asked['title']}", "bold yellow")
    if asked["state"] != "pending":
        by = ", ".join(str(person) for person in asked.get("decided_by") or ())
        voice.say(f"  state    {asked['state']}{f' by {by}' if by else ''}", "bold")
    if asked["kind"] == "reconciliation" and asked["state"] == "pending":
        for line in WHAT_TO_FIND_OUT:
            voice.say(f"  {line}")
    voice.say(f"  tool     {asked['tool']}")
    if asked.get("effect_id"):
        voice.say(f"  key      {asked['effect_id']}  (the Idempotency-Key that it was sent with)")
    voice.say("  args")
    voice.say(render.pretty(asked["args"], "    "))
    voice.say(f"  digest   {asked['action_digest']}")
    voice.say(f"  expires  {asked['expires_at']}")
    if groups := _groups(asked):
        voice.say(f"  groups   {', '.join(groups)}")
    _show_votes(voice, asked)


def _show_votes(voice: Voice, asked: Json) -> None:
    """A vote is shown to whoever decides next; one that does not count any more says so."""
    votes: list[Json] = asked.get("votes") or []
    for vote in votes:
        lost = "" if vote.get("counts", True) else "  (does not count: may not decide any more)"
        voice.say(f"  vote     {vote['principal']}: {vote['decision']}, {str(vote['at'])[:19]}Z{lost}")
    if asked["state"] == "pending" and asked["kind"] == "approval":
        policy: Any = asked.get("policy") or {}
        quorum = int(policy.get("quorum", 1))
        given = sum(vote["decision"] == "approve" and vote.get("counts", True) for vote in votes)
        if quorum > 1:
            voice.say(f"  missing  {quorum - given} of {quorum} people must still approve; one rejection ends it")


def _people(count: int) -> str:
    return f"{count} {'person' if count == 1 else 'people'}"


def _groups(asked: Json) -> Sequence[str]:
    policy: Any = asked.get("policy") or {}
    return [str(group) for group in policy.get("groups") or ()]


def _verdict(voice: Voice, recorded: Json) -> None:
    if recorded.get("state") == "pending":
        votes, quorum = int(recorded.get("votes") or 0), int(recorded.get("quorum") or 1)
        voice.say(
            f"{recorded.get('request_id', '')}  vote recorded, {votes} of {quorum}: "
            f"{_people(quorum - votes)} must still approve",
            "bold",
        )
        return
    by: Any = recorded.get("decided_by") or ()
    people = by if isinstance(by, str) else ", ".join(str(person) for person in by)
    voice.say(f"{recorded.get('request_id', '')}  {recorded.get('state', 'decided')} by {people or 'you'}", "bold")


def _answer(text: str | None, asked: Json) -> Any:
    """JSON, else text; always a text where the question's schema takes nothing else."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    args: Any = asked.get("args")
    try:
        takes: Any = args["schema"]["type"]
    except (TypeError, KeyError):
        return value
    return text if takes == "string" and not isinstance(value, str) else value
