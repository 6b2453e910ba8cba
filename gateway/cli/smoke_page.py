"""The smoke's report as one page: no script, no other file, readable in a minute. Everything is escaped."""

from importlib.resources import files

from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.cli.client import Json
from gateway.cli.smoke import counts, name_of


def page_of(report: Json) -> str:
    environment = ImmutableSandboxedEnvironment(autoescape=True, trim_blocks=True)
    page = (files("gateway.cli") / "smoke.html").read_text(encoding="utf-8")
    return environment.from_string(page).render(
        report=report,
        evidence=report["evidence"],
        verdict=report["evidence"]["verdict"],
        name=name_of(report),
        raised=any(report["flags"].values()),
        counts=counts,
    )
