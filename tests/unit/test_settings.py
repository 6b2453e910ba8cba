"""Settings: their order, their refusals, and the one stack file."""

import json
from pathlib import Path

import pytest

from gateway.settings import DevStack, SettingsInvalid, load_settings, load_stack, read_dev_file

ROOT = Path(__file__).resolve().parents[2]
RUNNING = {
    "api_url": "http://127.0.0.1:4711",
    "temporal_address": "127.0.0.1:4712",
    "temporal_ui_url": "http://127.0.0.1:4713",
    "namespace": "elsewhere",
    "pids": {"temporal": 1, "worker": 2, "api": 3},
}


def test_everything_local_lies_in_the_data_folder(tmp_path: Path) -> None:
    settings = load_settings(data=tmp_path)
    assert settings.ledger_url == f"sqlite:///{tmp_path}/ledger.db"
    assert settings.blobs_url == f"file://{tmp_path}/blobs"


def test_a_relative_data_folder_becomes_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings().data == tmp_path / ".jobgate"


def test_reading_settings_creates_nothing(tmp_path: Path) -> None:
    load_settings(data=tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_the_caller_wins_over_the_environment_over_the_running_stack_over_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "dev.json").write_text(json.dumps(RUNNING))
    monkeypatch.setenv("JOBGATE_DATA", str(tmp_path))
    settings = load_settings()
    assert (settings.api_port, settings.temporal_address, settings.namespace) == (4711, "127.0.0.1:4712", "elsewhere")
    assert settings.development
    assert settings.url == "http://127.0.0.1:4711"
    monkeypatch.setenv("JOBGATE_API_PORT", "5000")
    monkeypatch.setenv("JOBGATE_DEVELOPMENT", "false")
    assert (load_settings().api_port, load_settings().development) == (5000, False)
    assert load_settings(api_port=6000).api_port == 6000
    assert load_settings(data=tmp_path / "other").temporal_address == "127.0.0.1:7233"


def test_none_from_the_caller_counts_as_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBGATE_API_PORT", "5000")
    assert load_settings(api_port=None).api_port == 5000


@pytest.mark.parametrize(
    ("name", "value", "refusal"),
    [
        ("JOBGATE_LEDGERURL", "s3cret", "JOBGATE_LEDGERURL is not a setting of Jobgate"),
        ("JOBGATE_API_PORT", "s3cret", "JOBGATE_API_PORT: "),
        ("JOBGATE_API_PORT", "65536", "JOBGATE_API_PORT: "),
        ("JOBGATE_HTTP_DEADLINE_S", "-1", "JOBGATE_HTTP_DEADLINE_S: "),
        ("JOBGATE_LANES", "s3cret", "a JOBGATE_* setting that takes JSON holds something else"),
        ("JOBGATE_LANES", '{"default": {"queue": "s3cret"}}', "JOBGATE_LANES.default.task_queue: "),
        ("JOBGATE_LANE", "s3cret", "JOBGATE_LANE names none of the lanes"),
        ("JOBGATE_STACK_FILE", "/nowhere/stack.yaml", "/nowhere/stack.yaml can not be read"),
    ],
)
def test_a_bad_setting_is_one_line_that_names_it_and_not_its_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, refusal: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsInvalid) as refused:
        load_settings()
    assert refused.value.detail.startswith(refusal)
    assert "\n" not in refused.value.detail
    assert "s3cret" not in refused.value.detail


def test_the_text_of_settings_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBGATE_TOKEN", "s3cret")
    monkeypatch.setenv("JOBGATE_LEDGER_URL", "postgresql+psycopg://jobgate:s3cret@db/jobgate")
    assert "s3cret" not in repr(load_settings())


def test_settings_can_not_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().api_port = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_the_stack_file_at_the_root_is_the_packaged_one() -> None:
    assert load_stack(ROOT / "temporal-dev.yaml") == load_stack()
    assert (ROOT / "temporal-dev.yaml").samefile(ROOT / "gateway" / "temporal-dev.yaml")


def test_the_stack_says_what_the_design_asks_for() -> None:
    stack = load_stack()
    assert stack.namespace == "jobgate"
    assert dict(stack.server.sqlite_pragmas) == {"journal_mode": "wal", "synchronous": "normal"}
    assert dict(stack.search_attributes) == {
        "JobgateStatus": "Keyword",
        "JobgatePending": "Int",
        "JobgateWorkspace": "Keyword",
        "JobgatePrincipal": "Keyword",
        "JobgatePlugin": "Keyword",
        "JobgateDeadline": "Datetime",
    }
    assert stack.lanes["default"].task_queue == "jobgate-default"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("namespace: [", "is not YAML"),
        ("namespace: jobgate", "retention_days: Field required"),
        ("surprise: 1", "namespace: Field required"),
        ("[]", "valid dictionary"),
    ],
)
def test_a_bad_stack_file_is_named_with_its_fault(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "stack.yaml"
    path.write_text(text)
    with pytest.raises(SettingsInvalid) as refused:
        load_stack(path)
    assert str(path) in refused.value.detail
    assert fault in refused.value.detail


def test_a_stack_file_may_not_hold_what_nobody_reads() -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        DevStack.model_validate({**load_stack().model_dump(), "surprise": 1})


def test_a_dev_file_that_dev_did_not_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text("{}")
    with pytest.raises(SettingsInvalid, match=r"dev\.json"):
        read_dev_file(tmp_path)
