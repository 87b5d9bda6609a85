"""ProfilerConfig and SageMaker's JSON document: windows, errors and warnings."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tdcore as td
from tdcore.config.hook_file import load_hook_file
from tdcore.config.hook_json import parse_hook_config
from tdcore.config.profile_window import ProfileWindow
from tdcore.config.profiler_json import load_profiler_config, parse_profiler_config
from tdcore.errors import ConfigError
from tdcore.hooks.pytorch import Hook


def only(config: td.ProfilerConfig | None) -> ProfileWindow:
    assert config is not None
    (window,) = config.windows()
    return window


def test_steps_and_times_are_windows() -> None:
    assert only(td.ProfilerConfig(start_step=3, num_steps=5, python=True)) == ProfileWindow(
        start_step=3, num_steps=5, python=True
    )
    assert only(td.ProfilerConfig(start_time=1.7e9, duration=30)) == ProfileWindow(
        num_steps=None, start_time=1.7e9, duration=30
    )
    assert only(td.ProfilerConfig(start_time=1.7e9)).num_steps == 1
    assert td.ProfilerConfig().windows() == []


def test_parts_with_the_same_steps_are_one_window() -> None:
    config = td.ProfilerConfig(framework_profile_params=td.FrameworkProfile(start_step=4, num_steps=2))
    assert only(config) == ProfileWindow(start_step=4, num_steps=2, operators=True, python=True)


def test_the_default_steps_are_those_of_the_older_sdk() -> None:
    windows = td.ProfilerConfig(framework_profile_params=td.FrameworkProfile()).windows()
    assert [(each.start_step, each.num_steps, each.python) for each in windows] == [
        (5, 1, False), (7, 1, False), (9, 3, True),
    ]  # fmt: skip


def test_a_disabled_profiler_has_no_windows_and_no_samples() -> None:
    config = td.ProfilerConfig(start_step=3, disable_profiler=True)
    assert config.windows() == []
    assert config.system_interval() == timedelta()
    assert td.ProfilerConfig(system_monitor_interval_millis=200).system_interval() == timedelta(seconds=0.2)
    assert td.ProfilerConfig().system_interval() is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"start_step": -1}, r"ProfilerConfig\.start_step must be a whole number from 0 to .*, got -1"),
        ({"start_step": True}, "start_step must be a whole number"),
        ({"start_step": "3"}, "start_step must be a whole number"),
        ({"num_steps": 0}, r"num_steps must be a whole number from 1 to 1000, got 0"),
        ({"num_steps": 1001}, "1 to 1000"),
        ({"duration": 0}, r"duration must be a number of seconds above 0, at most 3600, got 0"),
        ({"duration": float("nan")}, "got nan"),
        ({"start_time": 1_700_000_000_000}, "start_time must be a number of seconds since 1970"),
        ({"start_step": 1, "duration": 3}, "has start_step and duration; give steps or times, not both"),
        ({"start_step": 1, "operators": False}, "operators and python are both False"),
        ({"python": "yes"}, r"ProfilerConfig\.python must be True or False"),
        ({"system_monitor_interval_millis": 50}, "100 to 60000 milliseconds, got 50"),
        ({"framework_profile_params": {}}, "must be a FrameworkProfile, got dict"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        td.ProfilerConfig(**values)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (td.PythonProfilingConfig, {"python_profiler": "perf"}, "'cprofile' or 'pyinstrument', got 'perf'"),
        (td.PythonProfilingConfig, {"cprofile_timer": "sun"}, "cprofile_timer must be 'total_time'"),
        (td.FrameworkProfile, {"python_profiling_config": 3}, "must be a PythonProfilingConfig, got int"),
        (td.DetailedProfilingConfig, {"start_step": 1, "start_unix_time": 3}, "steps or times, not both"),
    ],
)  # fmt: skip
def test_a_bad_value_of_a_part_is_refused(kind: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**values)


def test_a_hook_refuses_another_type(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="profiler_config must be a ProfilerConfig, got dict; write"):
        Hook(tmp_path, profiler_config={"start_step": 3})  # type: ignore[arg-type]


DOCUMENT = {
    "ProfilingIntervalInMilliseconds": 200,
    "ProfilingParameters": {
        "DetailedProfilingConfig": '{"StartStep": "3", "NumSteps": 2}',
        "DataloaderProfilingConfig": {"startstep": 3, "numsteps": 2, "MetricsRegex": ".*"},
        "PythonProfilingConfig": "{'StartStep': 7, 'NumSteps': 1, 'cProfileTimer': 'cpu_time'}",
    },
}


def test_the_older_document_is_read_with_texts_objects_and_literals() -> None:
    config = parse_profiler_config(DOCUMENT)
    assert config.system_interval() == timedelta(seconds=0.2)
    assert config.windows() == [
        ProfileWindow(start_step=3, num_steps=2),
        ProfileWindow(start_step=7, num_steps=1, operators=False, python=True, timer="cpu_time"),
    ]
    assert config.without_effect() == []


def test_keys_are_read_without_regard_to_case() -> None:
    lower = json.loads(json.dumps(DOCUMENT).lower())
    assert parse_profiler_config(lower) == parse_profiler_config(DOCUMENT)


def test_parameters_without_a_part_profile_nothing() -> None:
    assert parse_profiler_config({"ProfilingParameters": {"LocalPath": "/x"}}).windows() == []
    assert parse_profiler_config({"DisableProfiler": "true", **DOCUMENT}).windows() == []


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "the document must be a JSON object, got list"),
        ({"ProfilingParameters": 3}, "ProfilingParameters must be a JSON object, got int"),
        ({"ProfilingParameters": {"DetailedProfilingConfig": "os.remove('x')"}}, "write a JSON object"),
        ({"ProfilingParameters": {"DetailedProfilingConfig": {"StartStep": "x"}}}, "StartStep must be"),
        ({"ProfilingParameters": {"DetailedProfilingConfig": {"NumSteps": 0}}}, "DetailedProfilingConfig: "),
        ({"ProfilingIntervalInMilliseconds": "soon"}, "must be a whole number, got 'soon'"),
    ],
)  # fmt: skip
def test_a_bad_document_is_refused(document: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_profiler_config(document)


_VALUE = st.none() | st.booleans() | st.integers(-3, 2000) | st.floats() | st.text(max_size=6)
_PART = st.dictionaries(
    st.sampled_from(
        ["StartStep", "NumSteps", "DurationInSeconds", "StartTimeInSecSinceEpoch", "ProfilerName"]
    ),
    _VALUE,
)


@given(st.dictionaries(st.sampled_from(["DetailedProfilingConfig", "PythonProfilingConfig"]), _PART | _VALUE))
def test_any_document_is_a_configuration_or_refused(parameters: dict[str, Any]) -> None:
    try:
        config = parse_profiler_config({"ProfilingParameters": parameters})
    except ConfigError as error:
        assert str(error)  # noqa: PT017 -- either may come
    else:
        for window in config.windows():
            assert window.num_steps is None or 1 <= window.num_steps <= 1000
            assert window.operators or window.python


def test_the_file_is_found_and_its_name_is_in_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_profiler_config() is None
    path = tmp_path / "profiler.json"
    path.write_text(json.dumps(DOCUMENT))
    monkeypatch.setenv("SMPROFILER_CONFIG_PATH", str(path))
    config = load_profiler_config()
    assert config is not None
    assert len(config.windows()) == 2
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"profiler configuration .*profiler\.json: not JSON"):
        load_profiler_config()


def test_the_hook_json_may_contain_the_document() -> None:
    config = parse_hook_config({"LocalPath": "runs/demo", "ProfilerConfig": DOCUMENT})
    assert config.profiler_config == parse_profiler_config(DOCUMENT)
    assert config.to_json_dict()["profiler_config"]["windows"][0]["start_step"] == 3
    with pytest.raises(ConfigError, match="ProfilerConfig: the document must be a JSON object, got int"):
        parse_hook_config({"LocalPath": "runs/demo", "ProfilerConfig": 3})


def test_the_file_of_the_command_run_has_the_fields_of_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("profiler_config: {start_step: 3, num_steps: 2, python: true}")
    config = load_hook_file(path, out_dir="runs/demo").profiler_config
    assert config == td.ProfilerConfig(start_step=3, num_steps=2, python=True)
    path.write_text("profiler_config: {start: 3}")
    with pytest.raises(ConfigError, match="profiler_config has an unknown key 'start'"):
        load_hook_file(path, out_dir="runs/demo")


def test_the_file_configures_a_hook_and_settings_without_an_effect_are_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parameters = {**DOCUMENT["ProfilingParameters"], "LocalPath": "/x", "RotateMaxFileSizeInBytes": "100"}  # type: ignore[dict-item]
    document = {**DOCUMENT, "ProfilingParameters": parameters, "S3OutputPath": "s3://bucket"}
    (tmp_path / "profiler.json").write_text(json.dumps(document))
    monkeypatch.setenv("TDCORE_PROFILER_CONFIG", str(tmp_path / "profiler.json"))
    with Hook(tmp_path / "run", flusher="thread") as hook:
        hook.close()
        steps = [each.document["steps"] for each in td.create_trial(tmp_path / "run").profiles()]
        assert steps == [2, 1]
    warnings = [each.getMessage() for each in caplog.records if "no effect" in each.getMessage()]
    (warning,) = warnings
    assert warning.endswith("configuration have no effect: s3_output_path, local_path, file_max_size")


@pytest.mark.full
def test_the_interval_of_the_metrics_is_that_of_the_configuration_or_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def samples(name: str, config: td.ProfilerConfig) -> int:
        with Hook(tmp_path / name, flusher="thread", profiler_config=config):
            time.sleep(1.5)
        return int(td.create_trial(tmp_path / name).system().num_rows)

    monkeypatch.delenv("TDCORE_SYSTEM_INTERVAL", raising=False)
    assert samples("off", td.ProfilerConfig(disable_profiler=True)) == 0
    assert samples("seldom", td.ProfilerConfig(system_monitor_interval_millis=60_000)) <= 2
    monkeypatch.setenv("TDCORE_SYSTEM_INTERVAL", "off")
    assert samples("environment", td.ProfilerConfig(system_monitor_interval_millis=100)) == 0
