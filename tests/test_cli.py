"""The command line: its output as text and as JSON, and its exit codes."""

from __future__ import annotations

import importlib.metadata
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tdcore.cli import main
from tdcore.cli.output import human_bytes, number, sparkline
from tests.trial.writer import RunWriter


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Command:
    """Run `tdcore` in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Result:
        self._monkeypatch.setattr(sys, "argv", ["tdcore", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self._capsys.readouterr()
        code = ended.value.code
        return Result(code if isinstance(code, int) else 0, printed.out, printed.err)


@pytest.fixture
def tdcore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "160")
    return Command(monkeypatch, capsys)


def write(place: Path, size: float = 1.0, *, end: bool = True) -> Path:
    """Write a run of three steps with a weight, its gradient and a loss."""
    run = RunWriter(place)
    for step in (0, 10, 20):
        run.add("Net_fc.weight", np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), step=step)
        run.add("gradient/Net_fc.weight", size * np.ones((3, 4)), step=step, kind="gradient", payload=False)
        run.add("CrossEntropyLoss_output_0", 1.0 / (step + 1), step=step, kind="loss")
    run.flush()
    collections = {"gradients": {"include_regex": ["^gradient"], "tensor_names": ["gradient/Net_fc.weight"]}}
    run.put("collections.json", {"format": 1, "attempts": {"0": {"collections": collections}}})
    if end:
        run.end(drops={"ring_full": {"tensors": 3, "bytes": 4000}})
    return place


# Help and usage. -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["ls"],
        ["show"],
        ["trace"],
        ["view"],
        ["doctor"],
        ["upload"],
        ["demo"],
        ["run"],
        ["rules", "run"],
        ["rules", "sweep"],
        ["rules", "plan"],
        ["rules", "list"],
        ["rules", "explain"],
    ],
)
def test_every_command_has_help_with_an_example(tdcore: Command, command: list[str]) -> None:
    result = tdcore(*command, "--help")
    assert result.code == 0
    assert "Example" in result.out
    assert f"tdcore {' '.join(command)}" in result.out


@pytest.mark.parametrize(
    "command",
    [
        ["ls"],
        ["show"],
        ["trace"],
        ["export"],
        ["view"],
        ["doctor"],
        ["upload"],
        ["demo"],
        ["run"],
        ["rules", "run"],
    ],
)
def test_help_states_the_exit_codes(tdcore: Command, command: list[str]) -> None:
    assert "Exit codes: 0" in tdcore(*command, "--help").out


def test_the_version_is_printed(tdcore: Command) -> None:
    from tdcore._version import __version__

    assert tdcore("--version") == Result(0, __version__ + "\n", "")
    module = subprocess.run([sys.executable, "-m", "tdcore", "--version"], capture_output=True, text=True)
    assert module.stdout == __version__ + "\n"


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["rules", "run"], ["rules", "plan"], ["show"], ["rules", "explain", "nonsense"]],
)
def test_wrong_usage_is_2(tdcore: Command, arguments: list[str]) -> None:
    result = tdcore(*arguments)
    assert result.code == 2
    assert result.err


def test_help_imports_neither_arrow_nor_a_framework() -> None:
    code = (
        "import sys; sys.argv = ['tdcore', '--help']\n"
        "from tdcore.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'pyarrow', 'numpy', 'pandas'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


# ls. -------------------------------------------------------------------------------------------------------


def test_ls_lists_the_runs_below_a_folder(tdcore: Command, tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "deep" / "b", end=False)
    (tmp_path / "no run").mkdir()
    result = tdcore("ls", tmp_path, "--json")
    assert result.code == 0
    assert [(Path(run["run"]).name, run["status"]) for run in result.json["runs"]] == [
        ("a", "ended"),
        ("b", "running"),
    ]
    assert "2 runs in" in tdcore("ls", tmp_path).out


def test_ls_shows_what_a_run_holds_and_what_was_not_kept(tdcore: Command, tmp_path: Path) -> None:
    found = tdcore("ls", write(tmp_path), "--json").json
    assert (found["first_step"], found["last_step"], found["steps"], found["rows"]) == (0, 20, 3, 9)
    assert found["drops"] == {"ring_full": {"tensors": 3, "bytes": 4000}}
    assert found["collections"] == [{"collection": "gradients", "tensors": 1}]
    assert [(attempt["attempt"], attempt["clean"]) for attempt in found["attempts"]] == [(0, True)]
    weight = next(tensor for tensor in found["tensors"] if tensor["tensor"] == "Net_fc.weight")
    assert weight == {
        "tensor": "Net_fc.weight", "kind": "weight", "dtype": "F32", "first_step": 0, "last_step": 20,
        "steps": 3, "mode_steps": {"TRAIN": {"first": 0, "last": 20, "steps": 3}}, "payload_bytes": 144,
        "sharding": None, "notes": "",
    }  # fmt: skip
    text = tdcore("ls", tmp_path).out
    assert "not kept as requested: 3 tensors (4.0 KB): ring_full" in text
    assert "0..20 (3)" in text


def test_ls_can_be_limited_to_names(tdcore: Command, tmp_path: Path) -> None:
    found = tdcore("ls", write(tmp_path), "--regex", "^gradient", "--json").json
    assert [tensor["tensor"] for tensor in found["tensors"]] == ["gradient/Net_fc.weight"]


def test_ls_says_when_an_attempt_ended_unclean(tdcore: Command, tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.add("a", 1.0, step=0)
    run.flush()
    run.end(clean=False, reason="the training process ended without closing")
    assert "ended unclean: the training process ended without closing" in tdcore("ls", tmp_path).out


def test_ls_of_nothing_is_3_and_says_what_is_wrong(tdcore: Command, tmp_path: Path) -> None:
    result = tdcore("ls", tmp_path / "none")
    assert result.code == 3
    assert "does not exist" in result.err


# show. -----------------------------------------------------------------------------------------------------


def test_show_lists_all_tensors_with_their_last_statistics(tdcore: Command, tmp_path: Path) -> None:
    found = tdcore("show", write(tmp_path), "--json", "--stat", "max").json
    loss = next(tensor for tensor in found["tensors"] if tensor["tensor"] == "CrossEntropyLoss_output_0")
    assert loss["steps"] == [0, 10, 20]
    assert loss["history"] == [1.0, 1 / 11, 1 / 21]
    assert loss["last"]["mean"] == pytest.approx(1 / 21)
    text = tdcore("show", tmp_path).out
    assert "gradient/Net_fc.weight" in text
    assert "█▁▁" in text


def test_show_one_tensor_lists_its_steps_and_draws_its_histogram(tdcore: Command, tmp_path: Path) -> None:
    found = tdcore("show", write(tmp_path), "Net_fc.weight", "--json", "--step", 10).json
    assert [row["step"] for row in found["rows"]] == [0, 10, 20]
    assert found["histogram"]["step"] == 10
    assert sum(found["histogram"]["log2"].values()) == 12
    text = tdcore("show", tmp_path, "Net_fc.weight").out
    assert "magnitudes at step 20" in text
    assert "2^-1" in text


def test_show_takes_a_pattern_for_a_name(tdcore: Command, tmp_path: Path) -> None:
    assert tdcore("show", write(tmp_path), "^gradient", "--json").json["tensor"] == "gradient/Net_fc.weight"
    assert len(tdcore("show", tmp_path, "fc", "--json").json["tensors"]) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["no_such_tensor"], 3, "no tensor of"),
        (["Net_fc.weight", "--step", "11"], 3, "the nearest is 10"),
        (["--stat", "median"], 2, "it can be mean, std"),
        (["("], 2, "not a regular expression"),
    ],
)
def test_show_says_what_there_is_instead(
    tdcore: Command, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    result = tdcore("show", write(tmp_path), *arguments)
    assert result.code == code
    assert message in result.err


# rules. ----------------------------------------------------------------------------------------------------


def test_rules_run_without_an_issue_is_0(tdcore: Command, tmp_path: Path) -> None:
    result = tdcore("rules", "run", write(tmp_path), "-r", "vanishing_gradient", "-r", "TDC102")
    assert result.code == 0
    assert result.out.count("no issue") == 2


def test_rules_run_with_an_issue_is_1_and_names_step_and_tensor(tdcore: Command, tmp_path: Path) -> None:
    result = tdcore("rules", "run", write(tmp_path, 1e-9), "-r", "vanishing_gradient")
    assert result.code == 1
    assert "VanishingGradient at step 0" in result.out
    assert "gradient/Net_fc.weight: mean |gradient| is 1e-09" in result.out
    report = tdcore("rules", "run", tmp_path, "-r", "vanishing_gradient", "--json").json
    assert report["exit_code"] == 1
    (verdict,) = report["verdicts"]
    assert verdict["status"] == "issue"
    (finding,) = verdict["findings"]
    assert (finding["rule"], finding["step"]) == ("VanishingGradient", 0)
    assert (finding["last_step"], finding["count"]) == (20, 3)


def test_rules_run_that_cannot_evaluate_is_3_and_shows_the_configuration_that_would_help(
    tdcore: Command, tmp_path: Path
) -> None:
    result = tdcore("rules", "run", write(tmp_path), "-r", "dead_relu")
    assert result.code == 3
    assert "not evaluable" in result.out
    assert 'CollectionConfig(name="relu_output"' in result.out


def test_rules_run_on_a_run_that_goes_on_is_4(tdcore: Command, tmp_path: Path) -> None:
    result = tdcore("rules", "run", write(tmp_path, end=False), "-r", "vanishing_gradient", "--json")
    assert result.code == 4
    assert result.json["verdicts"][0]["verdict"] == "in progress: no issue up to step 10"


def test_rules_run_takes_parameters(tdcore: Command, tmp_path: Path) -> None:
    result = tdcore("rules", "run", write(tmp_path), "-r", "vanishing_gradient:threshold=2", "--json")
    assert result.code == 1
    assert result.json["verdicts"][0]["parameters"] == {"threshold": "2.0"}


def test_rules_run_follows_a_run_to_its_end_and_stops_the_training_of_one_that_goes_on(
    tdcore: Command, tmp_path: Path
) -> None:
    write(tmp_path, 1e-9, end=False)
    result = tdcore(
        "rules", "run", tmp_path, "-r", "vanishing_gradient", "--live", "--on-fire", "stop", "--timeout", 60
    )
    assert result.code == 1
    assert "VanishingGradient at step 0" in result.out
    assert json.loads((tmp_path / "control" / "stop-0000.json").read_text())["step"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-r", "vanishing_gradent"], "did you mean VanishingGradient"),
        (["-r", "vanishing_gradient:limit=1"], "no parameter 'limit'"),
        (["-r", "TDC101", "--on-fire", "explode"], "there is no action 'explode'"),
        (["-r", "TDC101", "--attempt", "first"], "--attempt must be a number or all"),
    ],
)
def test_rules_run_refuses_what_it_does_not_know(
    tdcore: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = tdcore("rules", "run", write(tmp_path), *arguments)
    assert result.code == 2
    assert message in result.err


def test_rules_run_on_nothing_is_3(tdcore: Command, tmp_path: Path) -> None:
    result = tdcore("rules", "run", tmp_path / "none", "-r", "TDC101")
    assert result.code == 3
    assert "there is no run at" in result.err
    result = tdcore("rules", "run", tmp_path / "none", "-r", "TDC101", "--live", "--start-timeout", 0)
    assert result.code == 3
    assert "no run has begun" in result.err


def test_a_watch_that_is_terminated_still_prints_its_report(tmp_path: Path) -> None:
    write(tmp_path, 1e-9, end=False)
    command = [sys.executable, "-m", "tdcore.cli", "rules", "run", str(tmp_path), "-r", "TDC101", "--live"]
    with subprocess.Popen([*command, "--until-end"], stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        assert "VanishingGradient at step 0" in watch.stdout.readline()
        watch.send_signal(signal.SIGTERM)
        rest = watch.stdout.read()
    assert watch.returncode == 1
    assert "issue: 1 finding (2 times)" in rest
    assert "interrupted" in rest


def test_rules_list_has_every_rule(tdcore: Command) -> None:
    from tdcore.rules import RULES

    assert [rule["code"] for rule in tdcore("rules", "list", "--json").json["rules"]] == list(RULES)
    assert "VanishingGradient" in tdcore("rules", "list").out


def test_rules_explain_prints_all_sections_and_parameters(tdcore: Command) -> None:
    from tdcore.rules.explain import SECTIONS

    text = tdcore("rules", "explain", "vanishing_gradient").out
    assert all(title in text for title in SECTIONS)
    assert "threshold = 1e-07" in text


# doctor and demo. ------------------------------------------------------------------------------------------


def test_doctor_finds_what_capture_needs(tdcore: Command, tmp_path: Path) -> None:
    result = tdcore("doctor", tmp_path, "--json")
    states = {check["name"]: check["state"] for check in result.json["checks"]}
    assert result.code == 0
    assert states["native code"] == states["shared memory"] == states["ring round trip"] == "ok"
    assert states["folder"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_doctor_lists_every_framework_that_has_a_hook_also_as_a_build_for_cpus(
    tdcore: Command, tmp_path: Path
) -> None:
    checks = {check["name"]: check for check in tdcore("doctor", tmp_path, "--json").json["checks"]}
    packages = ("torch", "lightning", "transformers", "keras", "tensorflow", "jax", "flax", "optax")
    for name in (*packages, "mxnet", "xgboost", "lightgbm"):
        installed = any(find_distribution(each) for each in (name, f"{name}-cpu"))
        assert checks[f"framework: {name}"]["state"] == ("ok" if installed else "missing")


def find_distribution(name: str) -> bool:
    return any(importlib.metadata.distributions(name=name))


def test_doctor_of_a_folder_that_a_run_would_make_is_fine_and_makes_nothing(
    tdcore: Command, tmp_path: Path
) -> None:
    result = tdcore("doctor", tmp_path / "new" / "run", "--json")
    checks = {check["name"]: check for check in result.json["checks"]}
    assert (result.code, checks["folder"]["state"], checks["direct I/O"]["state"]) == (0, "ok", "ok")
    assert f"does not exist yet; a run creates it in {tmp_path}" in checks["folder"]["detail"]
    assert list(tmp_path.iterdir()) == []


def test_doctor_of_a_place_that_cannot_be_written_is_3(tdcore: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        result = tdcore("doctor", place)
        assert result.code == 3
        assert "capture does not work here" in result.out
    assert "capture works here" in tdcore("doctor", tmp_path).out


def test_doctor_says_when_the_native_code_does_not_load(
    tdcore: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tdcore as package

    monkeypatch.setitem(sys.modules, "tdcore._core", None)
    monkeypatch.delattr(package, "_core", raising=False)
    result = tdcore("doctor", tmp_path)
    assert result.code == 3
    assert "capture does not work here" in result.out


def test_demo_passes_its_options_on(tdcore: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[object, bool]] = []

    def run_demo(out: str | None, json_output: bool) -> int:
        called.append((out, json_output))
        return 1

    monkeypatch.setattr("tdcore.cli.demo.run_demo", run_demo)
    assert tdcore("demo", "--out", tmp_path, "--json").code == 1
    assert called == [(str(tmp_path), True)]


# Other commands and options. -------------------------------------------------------------------------------


def test_a_sparkline_spans_the_range_and_marks_what_is_not_finite() -> None:
    assert sparkline([0.0, 1.0, 2.0, 7.0]) == "▁▂▃█"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([0.0, float("nan"), None, 1.0]) == "▁xx█"
    assert sparkline([float("nan")]) == "x"
    assert sparkline([]) == ""
    assert len(sparkline([float(at) for at in range(1000)], 20)) == 20


def test_numbers_and_bytes_are_short() -> None:
    assert [number(value) for value in (None, 3, 2.0, 0.123456, 1e-12, float("nan"))] == [
        "-", "3", "2", "0.1235", "1e-12", "nan",
    ]  # fmt: skip
    assert [human_bytes(count) for count in (None, 0, 999, 1500, 2_000_000)] == [
        "-",
        "0 B",
        "999 B",
        "1.5 KB",
        "2.0 MB",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls", "EMPTY"],
        ["ls", "none"],
        ["ls", "RUN", "-r", "("],
        ["show", "EMPTY"],
        ["show", "none"],
        ["show", "RUN", "no_such_tensor"],
        ["show", "RUN", "Net_fc.weight", "--step", "7"],
        ["rules", "run", "EMPTY", "-r", "TDC101"],
        ["rules", "run", "none"],
        ["rules", "run", "none", "--live", "--start-timeout", "0"],
        ["rules", "run", "RUN", "--attempt", "7"],
        ["rules", "run", "RUN", "-r", "no_such_rule"],
        ["rules", "run", "RUN", "-r", "TDC101:threshold=-1"],
        ["rules", "run", "RUN", "-r", "TDC101", "--on-fire", "stop:training_job_prefix=x"],
        ["rules", "run", "RUN", "-r", "TDC101", "--on-fire", "no_such_action"],
        ["rules", "sweep", "none", "-r", "no_such_rule"],
        ["rules", "plan"],
        ["upload", "none"],
        ["run", "none.py"],
        ["run", "--save-interval", "0", "none.py"],
    ],
)
def test_no_error_of_a_command_speaks_of_python(
    tdcore: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    write(tmp_path / "RUN")
    result = tdcore(*arguments)
    said = result.err or result.out
    assert result.code in (2, 3), said
    assert "timedelta" not in said
    assert not re.search(r"\w\(\w*=|\w\(\)", said), said
