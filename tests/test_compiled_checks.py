"""KC7 on snapshots written by hand: each check fires on the broken input and is silent on the smallest repair."""

from __future__ import annotations

import msgspec
import pytest

from kerncheck.catalog import load
from kerncheck.checks import compiled as checks
from kerncheck.checks.registry import Case
from kerncheck.judge import judge, left_out, requires
from kerncheck.model.base import Broken, Missing
from kerncheck.model.compiled import (
    Call,
    Compiled,
    Configuration,
    Kernel,
    Lost,
    Phase,
    Rehearsal,
    Result,
    Toolchain,
)
from kerncheck.model.environment import Gpus
from kerncheck.model.job import Job
from kerncheck.model.snapshot import Snapshot
from kerncheck.models import resolve
from kerncheck.stages.compile_plan import facts_of
from kerncheck.targets import parse_target

CATALOG = load()
QWEN = resolve("qwen", CATALOG)
CHUNK = "fla.ops.gated_delta_rule:chunk_gated_delta_rule"
DECODE = "fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule"
KNOWS = Toolchain(triton="3.9.0", ptxas="ptxas", version="13.4.59", release="13.4", target="sm_90a", knows=True)


def job(*targets, **changes):
    named = tuple(parse_target(text, CATALOG) for text in targets or ("h200",))
    return Job(**{"profile": "image", "model": QWEN, "targets": named, **changes})


def kernel(name, count):
    items = tuple(Configuration(id=f"{name}{n}", number=n, choice={"num_warps": 2**n}) for n in range(1, count + 1))
    return Kernel(name=name, of=count, configurations=items)


def call(*kernels, op=CHUNK, **changes):
    ids = tuple((item.id,) for one in kernels for item in one.configurations)
    phase = Phase(phase="forward", kernels=kernels, own=ids)
    return Call(**{"op": op, "phases": (phase,), **changes})


def good(name, n, **changes):
    return Result(
        **{"id": f"{name}{n}", "compiled": True, "seconds": 1.0, "shared": 65536, "local_memory": 0, **changes}
    )


def bad(
    name, n, exception="CompilationError", error="at 3:8:\n    b = tl.load(p)\nNameError: b_x is not defined", **more
):
    return Result(id=f"{name}{n}", compiled=False, exception=exception, error=error, **more)


def rehearsal(*results, calls=None, target="h200", **changes):
    named = parse_target(target, CATALOG)
    wanted = calls if calls is not None else (call(kernel("dqkwg", 2)),)
    made = {
        "target": named,
        "facts": facts_of(named, CATALOG),
        "toolchain": KNOWS,
        "calls": wanted,
        "results": results,
    }
    return Rehearsal(**{**made, **changes})


WHOLE = (good("dqkwg", 1), good("dqkwg", 2))


def said(check, section, what=None, gpus=None):
    compiled = section if isinstance(section, Compiled | Missing) else Compiled(rehearsals=(section,))
    asked = what or job()
    snapshot = Snapshot(job=asked, compiled=compiled, gpus=gpus or Missing(reason="no NVML"))
    again = msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot)
    outcomes, crashes = judge(Case(asked, again, CATALOG), [check])
    assert crashes == ()
    return outcomes


def statuses(outcomes):
    return [outcome.status for outcome in outcomes]


def test_each_check_has_its_code():
    found = (
        checks.kernels_compile,
        checks.configurations_fit,
        checks.ptxas_knows,
        checks.driver_runs_output,
        checks.registers_spill,
        checks.cold_cache,
    )
    assert [check.code for check in found] == ["KC701", "KC702", "KC703", "KC704", "KC705", "KC706"]


def test_what_compiles_passes_as_rehearsed_and_never_as_working():
    (outcome,) = said(checks.kernels_compile, rehearsal(*WHOLE))
    assert (outcome.status, outcome.evidence) == ("passed", "rehearsed")
    assert "compiles for sm_90 as rehearsed: kernels 1, configurations 2" in outcome.message
    assert "works" not in outcome.message


def test_a_kernel_that_does_not_compile_is_named_with_its_message_and_configuration():
    (outcome,) = said(checks.kernels_compile, rehearsal(good("dqkwg", 1), bad("dqkwg", 2)))
    assert (outcome.status, outcome.severity, outcome.subject) == ("failed", "error", "h200: dqkwg")
    assert "1 of 2 configurations" in outcome.message
    assert "chunk_gated_delta_rule (plain)" in outcome.message
    assert outcome.found == "[num_warps=4] CompilationError: NameError: b_x is not defined"


def test_a_configuration_that_ptxas_refuses_is_dropped_by_the_autotuner_unless_it_is_the_last():
    refused = {
        "exception": "PTXASError",
        "error": "PTXAS error: Internal\n`ptxas` stderr:\nptxas fatal   : out of range\n",
    }
    one, passed = said(checks.kernels_compile, rehearsal(good("dqkwg", 1), bad("dqkwg", 2, **refused)))[::-1]
    assert (one.status, passed.status) == ("note", "passed")
    assert "ptxas fatal   : out of range" in one.message
    (all_of_them,) = said(checks.kernels_compile, rehearsal(bad("dqkwg", 1, **refused), bad("dqkwg", 2, **refused)))
    assert all_of_them.status == "failed"


def test_a_pass_that_the_compiler_could_not_run_tells_what_mlir_printed():
    printed = "x.py:9:3: error: 'tt.dot' op expected the same encoding\nnote: see\n"
    result = bad("dqkwg", 2, exception="RuntimeError", error="PassManager::run failed", detail=printed)
    (outcome,) = said(checks.kernels_compile, rehearsal(good("dqkwg", 1), result))
    assert "error: 'tt.dot' op expected the same encoding" in outcome.found


def test_a_compiler_that_aborts_is_a_finding_about_the_kernel_it_was_in():
    words = "Failed to hoist\nUNREACHABLE executed at HoistTMEMAlloc.cpp:418\n"
    broken = Broken(how="signal", message="killed by SIGABRT", signal=6, detail=words)
    lost = Lost(name="chunk backward 1/8", why=broken, ids=("dqkwg2",), at="dhu[num_warps=2]")
    outcomes = said(checks.kernels_compile, rehearsal(good("dqkwg", 1), lost=(lost,)))
    (finding,) = [outcome for outcome in outcomes if outcome.status == "failed"]
    assert finding.subject == "h200: dhu"
    assert "the compiler ended the process on dhu[num_warps=2]: killed by SIGABRT" in finding.message
    assert finding.found == "UNREACHABLE executed at HoistTMEMAlloc.cpp:418"
    (open_one,) = [outcome for outcome in outcomes if outcome.status == "not_judged"]
    assert (open_one.required, open_one.subject) == (True, "h200: chunk_gated_delta_rule (plain)")


def test_slow_compilation_is_inconclusive_and_no_finding():
    lost = Lost(name="chunk backward 1/8", why=Missing(reason="not finished after 900 s"), ids=("dqkwg2",))
    (outcome,) = said(checks.kernels_compile, rehearsal(good("dqkwg", 1), lost=(lost,)))
    assert (outcome.status, outcome.required) == ("not_judged", True)
    assert "not finished after 900 s" in outcome.message


def test_a_call_that_fla_refuses_is_a_finding_and_an_absent_op_is_not():
    guard = Broken(how="raised", exception="RuntimeError", message="incorrect results for gated chunk_bwd_dqkwg")
    forward = call(kernel("dqkwg", 2)).phases[0]
    refused = Call(op=CHUNK, phases=(forward, Phase(phase="backward", problem=guard)))
    (outcome,) = said(checks.kernels_compile, rehearsal(*WHOLE, calls=(refused,)))
    assert outcome.status == "failed"
    assert "the backward pass raises before a kernel is compiled" in outcome.message
    absent = Broken(how="raised", exception="UnknownOpError", message="ModuleNotFoundError: No module named 'fla'")
    (outcome,) = said(
        checks.kernels_compile, rehearsal(calls=(Call(op=CHUNK, phases=(Phase(phase="forward", problem=absent),)),))
    )
    assert (outcome.status, outcome.required) == ("not_judged", True)


def test_what_another_backend_would_run_is_not_judged_by_the_triton_kernels_behind_it():
    elsewhere = call(kernel("dqkwg", 2), elsewhere={"chunk_bwd_dqkwg": "tilelang"})
    first, second = said(checks.kernels_compile, rehearsal(*WHOLE, calls=(elsewhere,)))
    assert (first.status, first.required) == ("not_judged", True)
    assert "fla hands chunk_bwd_dqkwg to tilelang" in first.message
    assert second.status == "passed"


def test_an_op_that_training_does_not_enter_changes_no_verdict():
    decoding = (call(kernel("step", 1), op=DECODE),)
    assert statuses(said(checks.kernels_compile, rehearsal(bad("step", 1), calls=decoding))) == ["note"]
    inference = job(training=False)
    assert statuses(said(checks.kernels_compile, rehearsal(bad("step", 1), calls=decoding), inference)) == ["failed"]


def test_quick_says_that_it_saw_the_first_configuration_alone():
    section = Compiled(quick=True, rehearsals=(rehearsal(good("dqkwg", 1)),))
    (outcome,) = said(checks.kernels_compile, section)
    assert outcome.status == "passed"
    assert "the first configuration of each" in outcome.message


def test_nothing_surveyed_is_never_a_pass():
    lost = rehearsal(survey=Missing(reason="torch is absent"), toolchain=Toolchain(), calls=())
    assert statuses(said(checks.kernels_compile, lost)) == ["not_judged"]
    assert statuses(said(checks.ptxas_knows, lost)) == ["not_judged"]
    (outcome,) = said(checks.kernels_compile, Compiled(unplanned={"sm_61": "no limits of capability 6.1"}))
    assert (outcome.status, outcome.required) == ("not_judged", True)
    (outcome,) = said(checks.kernels_compile, Missing(reason="no target was named (--target)"))
    assert outcome.status == "not_judged"
    (outcome,) = said(checks.kernels_compile, rehearsal(calls=(call(),)))
    assert outcome.message == "the call launches no Triton kernel"


def test_no_room_in_shared_memory_is_an_error_and_little_room_a_note():
    tiles = [good("dqkwg", n, shared=98308) for n in (1, 2)]
    (outcome,) = said(checks.configurations_fit, rehearsal(*tiles, target="t4"))
    assert (outcome.status, outcome.severity) == ("failed", "error")
    assert outcome.found == "0 of 2 configurations fit; the least needs 98,308 bytes"
    assert "65,536 bytes" in outcome.message
    note, passed = said(checks.configurations_fit, rehearsal(tiles[0], good("dqkwg", 2, shared=16388), target="t4"))
    assert (note.status, passed.status) == ("note", "passed")
    assert "dqkwg 1 of 2 fit" in note.message
    (outcome,) = said(checks.configurations_fit, rehearsal(*tiles, target="h200"))
    assert (outcome.status, outcome.evidence) == ("passed", "rehearsed")
    assert "(2 of 2 fit)" in outcome.message


def test_tensor_memory_counts_as_room_too():
    results = [good("dqkwg", n, tensor_memory=1024) for n in (1, 2)]
    assert statuses(said(checks.configurations_fit, rehearsal(*results, target="b200"))) == ["failed"]


def test_a_quick_run_does_not_condemn_a_kernel_by_its_first_configuration():
    section = Compiled(quick=True, rehearsals=(rehearsal(good("dqkwg", 1, shared=98308), target="t4"),))
    assert statuses(said(checks.configurations_fit, section)) == ["not_judged"]


def test_room_is_not_judged_where_a_kernel_did_not_compile():
    assert statuses(said(checks.configurations_fit, rehearsal(bad("dqkwg", 1), bad("dqkwg", 2)))) == ["not_judged"]


def test_a_ptxas_that_does_not_know_the_target_fails_once_and_not_for_each_kernel():
    words = "ptxas fatal   : Value 'sm_101a' is not defined for option 'gpu-name'"
    tool = msgspec.structs.replace(KNOWS, target="sm_101a", knows=False, message=words)
    unknown = rehearsal(target="sm_101", toolchain=tool)
    (outcome,) = said(checks.ptxas_knows, unknown)
    assert (outcome.status, outcome.found) == ("failed", words)
    (other,) = said(checks.kernels_compile, unknown)
    assert (other.status, other.required) == ("not_judged", False)
    assert statuses(said(checks.ptxas_knows, rehearsal(*WHOLE))) == ["passed"]


@pytest.mark.parametrize(
    ("triton", "target", "words"),
    [
        ("3.5.1", "gb10", "install triton >= 3.6.0"),
        ("3.5.1", "sm_110", "install triton >= 3.7.1"),
        ("3.9.0", "gb10", "TRITON_PTXAS_BLACKWELL_PATH"),
        ("3.9.0", "sm_88", "no Triton release is known"),
    ],
)
def test_the_remedy_names_a_triton_that_reaches_the_target(triton, target, words):
    tool = msgspec.structs.replace(KNOWS, triton=triton, knows=False, message="not defined")
    (outcome,) = said(checks.ptxas_knows, rehearsal(target=target, toolchain=tool))
    assert words in outcome.remedy


@pytest.mark.parametrize(
    ("driver", "status"),
    [
        ("575", "failed"),
        ("575.51.03", "failed"),
        ("580", "passed"),
        ("580.65.06", "passed"),
        ("580.60", "failed"),
        ("610", "passed"),
    ],
)
def test_the_declared_driver_is_compared_with_the_cuda_of_ptxas_and_only_warns(driver, status):
    (outcome,) = said(checks.driver_runs_output, rehearsal(*WHOLE), job(driver=driver))
    assert outcome.status == status
    assert status == "passed" or (outcome.severity, outcome.evidence) == ("warning", "declared")


def test_without_a_driver_nothing_is_said_about_it_and_one_that_is_here_counts():
    (outcome,) = said(checks.driver_runs_output, rehearsal(*WHOLE))
    assert (outcome.status, outcome.required) == ("not_judged", False)
    (outcome,) = said(checks.driver_runs_output, rehearsal(*WHOLE), gpus=Gpus(driver="570.124.06", cuda="12.8"))
    assert outcome.status == "failed"


def test_spills_are_told_and_fail_nothing():
    results = (good("dqkwg", 1, local_memory=21568), good("dqkwg", 2, local_memory=880))
    (outcome,) = said(checks.registers_spill, rehearsal(*results))
    assert outcome.status == "note"
    assert "dqkwg (880 bytes a thread at least)" in outcome.message
    assert statuses(said(checks.registers_spill, rehearsal(*WHOLE))) == ["passed"]


def test_a_cold_cache_is_told_and_a_warm_one_passes():
    (outcome,) = said(checks.cold_cache, rehearsal(*WHOLE))
    assert outcome.status == "note"
    assert "2 compilations took 2 s of CPU time" in outcome.message
    warm = [msgspec.structs.replace(result, cached=True) for result in WHOLE]
    assert statuses(said(checks.cold_cache, rehearsal(*warm))) == ["passed"]


def test_the_family_has_a_place_with_targets_and_is_required_in_an_image():
    assert left_out(job(targets=()), checks.kernels_compile) == "no target was named (--target)"
    assert left_out(job(model=None), checks.kernels_compile) == "no model was named (--model)"
    assert left_out(job(), checks.kernels_compile) == ""
    assert requires(job(), "KC7")
    assert not requires(job(profile="ci"), "KC7")
