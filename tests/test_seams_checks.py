"""The checks of the seams on hand-made snapshots: each fires on the broken one and is silent on its repair."""

from __future__ import annotations

import msgspec
import pytest
from faults.standins import CATALOG, CHUNK, CONV, MODELLING, RECURRENT, codes, job, judged, qwen, the

from kerncheck.checks.registry import Case, all_checks
from kerncheck.judge import judge
from kerncheck.model.base import Broken, Missing
from kerncheck.model.environment import Environment, Gpus
from kerncheck.model.job import Job, ModelRequest, RequiredOp
from kerncheck.model.seams import (
    AttentionPackages,
    Binding,
    Bindings,
    Entered,
    Entry,
    Error,
    KernelsPackage,
    LayerAttention,
    LayerKernels,
    Reason,
    Seams,
)
from kerncheck.model.snapshot import Snapshot
from kerncheck.probes.seams import hub_cache, in_hub_cache

KERNELS = ("l2norm_fwd_kernel", "chunk_fwd_kernel_o")
PARAMETERS = ("q", "k", "v", "g", "beta", "cu_seqlens")


def binding(op=CHUNK, bound="package", reason=None, **changes):
    package, function = op.partition(".")[0].partition(":")[0], op.rpartition(":")[2]
    plain = {
        "name": f"seam_{function}",
        "module": MODELLING,
        "function": function,
        "package": package,
        "op": op,
        "bound": bound,
        "target": f"{package}.x.{function}" if bound == "package" else f"{MODELLING}.torch_{function}",
        "parameters": PARAMETERS,
        "reason": Reason(kind=reason, message="no module") if reason else None,
    }
    return Binding(**{**plain, **changes})


def bindings(*items, **changes):
    plain = {
        "transformers": "5.24.0",
        "mechanism": "seam",
        "module": MODELLING,
        "layer_types": (),
        "bindings": items,
        "torch_gpu": "12.8",
    }
    return Bindings(**{**plain, **changes})


def entry(op=CHUNK, layer=0, ran=("package",), kernels=KERNELS, **changes):
    return Entry(
        **{
            "layer": layer,
            "seam": f"seam_{op.rpartition(':')[2]}",
            "calls": 1,
            "ran": ran,
            "kernels": kernels,
            **changes,
        }
    )


def entered(*entries, items=(), **changes):
    plain = {
        "phase": "training",
        "device": "emulate",
        "layer_types": ("linear_attention", "full_attention"),
        "bindings": items or (binding(), binding(CONV), binding(RECURRENT)),
        "entries": entries,
        "attention": (LayerAttention(layer=1, functions=("sdpa",)),),
        "forward": (LayerKernels(layer=0, kernels=KERNELS),),
        "backward": (LayerKernels(layer=0, kernels=("chunk_bwd_kernel_dqkwg",)),),
        "asked": "sdpa",
    }
    return Entered(**{**plain, **changes})


GOOD = Seams(
    bound=bindings(binding(), binding(CONV, parameters=("x", "weight", "seq_idx")), binding(RECURRENT)),
    entered=entered(entry(), entry(CONV, kernels=())),
)


def with_bound(*items, **changes):
    return Seams(bound=bindings(*items, **changes), entered=Missing(reason="nothing ran"))


def with_run(*entries, **changes):
    return Seams(bound=GOOD.bound, entered=entered(*entries, **changes))


def one(report, code):
    return [outcome for outcome in report.outcomes if outcome.code == code]


def test_a_good_run_passes_every_check():
    report = judged(job(packing="both"), GOOD)
    assert codes(report) == []
    assert report.exit_code == 0
    assert {outcome.code for outcome in report.of("passed")} == {
        f"KC3{number:02}" for number in (1, 2, 3, 4, 5, 6, 8, 9, 10)
    }
    assert all(outcome.evidence == "emulated" for outcome in one(report, "KC303") if outcome.status == "passed")


def test_on_a_gpu_the_same_run_is_measured():
    asked = job(profile="node", device="cuda")
    seams = Seams(bound=GOOD.bound, entered=entered(entry(), entry(CONV, kernels=()), device="cuda"))
    assert {item.evidence for item in one(judged(asked, seams), "KC303")} == {"measured"}


@pytest.mark.parametrize(
    ("reason", "words", "remedy"),
    [
        ("absent", "fla is not installed", "flash-linear-attention"),
        ("broken", "installed, but no module", "mend the import of fla"),
        ("hidden", "hidden in this process", "sys.modules['fla']"),
        ("no_op", "imports, but no module", "made for each other: this fla has no chunk_gated_delta_rule"),
        ("root_only", "looks in its root only", "transformers 5.17"),
        ("late", "imported before fla could be", "import fla before"),
        ("replaced", "was replaced after the import", "patch"),
    ],
)
def test_an_eager_binding_is_named_with_its_layers_and_its_cause(reason, words, remedy):
    report = judged(job(), with_bound(binding(bound="eager", reason=reason), binding(CONV)), only="KC301")
    found = the(report, "KC301")
    assert found.message.startswith("24 of 32 layers run the eager reference of chunk_gated_delta_rule: ")
    assert words in found.message
    assert remedy in found.remedy
    assert report.exit_code == 1
    assert judged(job(), with_bound(binding(), binding(CONV)), only="KC301").exit_code == 0


def test_only_the_ops_that_fell_back_are_named():
    report = judged(job(), with_bound(binding(bound="eager", reason="no_op"), binding(CONV)), only="KC301")
    assert [item.subject for item in report.findings] == ["fla"]
    assert [item.subject for item in report.of("passed")] == [CONV]


def test_two_ops_with_one_cause_are_one_finding():
    items = (binding(bound="eager", reason="absent"), binding(RECURRENT, bound="eager", reason="absent"), binding(CONV))
    found = the(judged(job(training=False), with_bound(*items), only="KC301"), "KC301")
    assert "chunk_gated_delta_rule, fused_recurrent_gated_delta_rule" in found.message


def test_an_op_that_training_never_enters_is_not_required_for_training():
    items = (binding(), binding(CONV), binding(RECURRENT, bound="eager", reason="absent"))
    assert codes(judged(job(), with_bound(*items), only="KC301")) == []
    assert codes(judged(job(training=False), with_bound(*items), only="KC301")) == ["KC301"]


def test_a_seam_that_something_unknown_replaced_is_not_called_the_reference():
    found = the(
        judged(job(), with_bound(binding(bound="replaced", target="__main__.mine"), binding(CONV)), only="KC301"),
        "KC301",
    )
    assert found.message.startswith("24 of 32 layers do not call chunk_gated_delta_rule of fla")
    assert "__main__.mine" in found.message


def absent_conv(**changes):
    return with_bound(binding(), binding(CONV, bound="eager", reason="absent"), **changes)


NO_GPU, A_GPU = Environment(), Environment(nodes=("/dev/nvidia0",))
UNSEEN = Missing(reason="not looked")


@pytest.mark.parametrize(
    ("profile", "torch_gpu", "environment", "status"),
    [
        ("ci", "", UNSEEN, "not_applicable"),
        ("ci", "12.8", UNSEEN, "failed"),
        ("node", "", UNSEEN, "failed"),
        ("node", "", NO_GPU, "not_applicable"),
        ("node", "12.8", NO_GPU, "failed"),
        ("node", "", A_GPU, "failed"),
        ("image", "12.8", NO_GPU, "failed"),
    ],
)
def test_an_absent_compiled_package_does_not_apply_to_a_cpu_build_of_torch_without_a_gpu(
    profile, torch_gpu, environment, status
):
    asked = job(profile=profile, device="emulate" if profile == "ci" else "none")
    snapshot = Snapshot(job=asked, seams=absent_conv(torch_gpu=torch_gpu), environment=environment, gpus=Gpus())
    (check,) = [check for check in all_checks() if check.code == "KC301"]
    outcomes, crashes = judge(Case(asked, snapshot, CATALOG), [check])
    assert not crashes
    assert {item.status for item in outcomes if item.subject in (CONV, "causal_conv1d")} == {status}


def test_a_broken_compiled_package_fails_on_a_cpu_build_too():
    seams = with_bound(binding(), binding(CONV, bound="eager", reason="broken"), torch_gpu="")
    assert codes(judged(job(), seams, only="KC301")) == ["KC301"]


@pytest.mark.parametrize(("ran", "words"), [(("eager",), "the eager reference"), (("replaced",), "took its place")])
def test_what_is_bound_must_be_what_executes(ran, words):
    report = judged(job(), with_run(entry(ran=ran, kernels=()), entry(CONV, kernels=())))
    assert codes(report) == ["KC302"]
    assert "layer 0 of the 2 that were built executed " in the(report, "KC302").message
    assert words in the(report, "KC302").message


def test_running_both_is_said():
    report = judged(job(), with_run(entry(ran=("package", "eager")), entry(CONV, kernels=())), only="KC302")
    assert "executed both" in the(report, "KC302").message


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (with_run(entry(CONV, kernels=())), "never entered by built layers 0"),
        (with_run(entry(kernels=()), entry(CONV, kernels=())), "no kernel launched in the forward"),
        (with_run(entry(), entry(CONV, kernels=()), backward=()), "no kernel launched in the backward"),
        (
            with_run(entry(), entry(CONV, kernels=()), layer_types=("linear_attention", "linear_attention")),
            "never entered by built layers 1",
        ),
    ],
)
def test_a_bound_kernel_must_be_entered_and_launched(run, words):
    report = judged(job(), run, only="KC303")
    assert set(codes(report)) == {"KC303"}
    assert any(words in finding.message for finding in report.findings)
    assert report.exit_code == 1


def test_a_gpu_where_no_kernel_can_be_counted_is_not_judged():
    nothing = {"forward": (), "backward": (), "device": "cuda"}
    seams = with_run(entry(kernels=()), entry(CONV, kernels=()), **nothing)
    report = judged(job(profile="node", device="cuda"), seams, only="KC303")
    assert (codes(report), report.exit_code) == ([], 3)


def test_a_kernel_of_the_hub_need_not_be_written_in_triton():
    hub_bound = bindings(binding(bound="hub"), binding(CONV, bound="hub"))
    run = entered(entry(ran=("hub",), kernels=()), entry(CONV, ran=("hub",), kernels=()))
    assert codes(judged(job(), Seams(bound=hub_bound, entered=run), only="KC303")) == []


def test_decoding_has_no_backward_to_launch_kernels_in():
    entries = (entry(), entry(CONV, kernels=()), entry(RECURRENT))
    report = judged(job(training=False), with_run(*entries, phase="decoding", backward=()), only="KC303")
    assert codes(report) == []


def test_a_stand_in_is_named_as_not_judged_and_never_as_fused():
    run = with_run(entry(), entry(CONV, ran=("standin",), kernels=()), standins=(CONV,))
    report = judged(job(), run)
    (said,) = [item for item in one(report, "KC303") if item.subject == CONV]
    assert (said.status, said.required) == ("not_judged", False)
    assert "eager stand-in" in said.message
    assert report.exit_code == 0
    assert not [item for item in one(report, "KC302") if item.subject == CONV]


def test_where_no_needed_op_could_run_at_all_there_is_no_pass():
    model = qwen(required=(RequiredOp(op=CONV, layer_type="linear_attention"),))
    items = (binding(CONV, bound="eager", reason="absent"),)
    run = entered(entry(CONV, ran=("standin",), kernels=()), items=items, standins=(CONV,))
    report = judged(job(model=model), Seams(bound=bindings(*items, torch_gpu=""), entered=run))
    assert (codes(report), report.exit_code) == ([], 3)
    assert [item.code for item in report.unjudged] == ["KC303"]


def test_a_compiled_package_that_the_catalog_alone_knows_does_not_apply_to_a_cpu_build():
    op = "mamba_ssm.ops.selective_scan_interface:selective_scan_fn"
    item = binding(op, bound="eager", reason="absent", package="mamba_ssm")
    run = entered(entry(op, ran=("eager",), kernels=()), items=(item,))
    seams = Seams(bound=bindings(item, torch_gpu=""), entered=run)
    report = judged(job(model=unlike(LINEAR)), seams)
    assert (codes(report), report.exit_code) == ([], 3)
    on_a_gpu_build = Seams(bound=bindings(item, torch_gpu="12.8"), entered=run)
    assert codes(judged(job(model=unlike(LINEAR)), on_a_gpu_build)) == ["KC301"]


def test_another_op_of_the_same_package_may_stand_in_for_one_that_the_model_never_calls():
    other = "fla.ops.gated_delta_rule:other_form"
    model = qwen(
        required=(
            RequiredOp(op=CHUNK, layer_type="linear_attention"),
            RequiredOp(op=other, layer_type="linear_attention"),
        )
    )
    items = (binding(), binding(other))
    seams = Seams(bound=bindings(*items), entered=entered(entry(), items=items))
    report = judged(job(model=model), seams, only="KC303")
    assert {(item.subject, item.status) for item in report.outcomes} == {(CHUNK, "passed"), (other, "note")}


def unlike(types, folder="unheard_of", required=()):
    return ModelRequest(name="m", folder=folder, architecture="", config={}, layer_types=types, required=required)


LINEAR = ("linear_attention", "linear_attention", "linear_attention", "full_attention")


def test_linear_layers_without_a_seam_are_judged_by_launches_and_never_pass_unseen():
    asked = job(model=unlike(LINEAR))
    assert judged(asked, with_bound(), only="KC304").exit_code == 3
    silent = Seams(bound=bindings(), entered=entered(forward=(LayerKernels(layer=1, kernels=KERNELS),)))
    report = judged(asked, silent, only="KC304")
    assert codes(report) == ["KC304"]
    assert "3 of 4 layers: no seam in " in the(report, "KC304").message
    loud = Seams(bound=bindings(), entered=entered())
    assert judged(asked, loud, only="KC304").exit_code == 0


def test_a_required_op_without_its_seam_is_named():
    report = judged(job(), with_bound(binding()), only="KC304")
    assert "causal_conv1d_fn" in report.unjudged[0].message
    assert report.exit_code == 3


def test_an_op_that_only_the_code_asks_for_is_judged_too():
    other = binding("fla.ops.gated_delta_rule:recurrent_gated_delta_rule", bound="eager", reason="no_op")
    seams = with_bound(binding(), binding(CONV), other)
    assert codes(judged(job(training=False), seams, only="KC301")) == ["KC301"]
    assert codes(judged(job(), seams, only="KC301")) == []


def test_full_attention_needs_no_seam():
    report = judged(job(model=unlike(("full_attention",) * 4)), with_bound())
    assert [item.status for item in one(report, "KC304")] == ["not_applicable"]
    assert [item.status for item in one(report, "KC301")] == ["not_applicable"]


def test_a_model_nobody_has_heard_of_is_judged_by_the_seams_that_are_found():
    asked = job(model=unlike(LINEAR))
    report = judged(asked, with_bound(binding(bound="eager", reason="absent")), only="KC301")
    assert the(report, "KC301").message.startswith("3 of 4 layers run the eager reference")


@pytest.mark.parametrize("mechanism", ["lazy", "unknown"])
def test_another_mechanism_is_not_judged(mechanism):
    seams = with_bound(transformers="5.6.0", mechanism=mechanism)
    report = judged(job(), seams)
    assert codes(report) == []
    assert report.exit_code == 3
    assert [item.required for item in one(report, "KC305")] == [True]
    assert {item.status for item in report.outcomes if item.code in ("KC301", "KC304")} == {"not_judged"}


@pytest.mark.parametrize("mechanism", ["lazy", "unknown"])
def test_a_run_whose_seams_were_not_watched_passes_nothing(mechanism):
    bound = bindings(transformers="5.6.0", mechanism=mechanism)
    report = judged(job(), Seams(bound=bound, entered=entered(items=())), only="KC3")
    assert [item.code for item in report.of("passed")] == []
    assert report.exit_code == 3


FLAGS = {"transformers": "4.57.6", "mechanism": "flags"}
NORM = "fla.modules:FusedRMSNormGated"


def test_flags_that_were_told_of_a_gpu_are_judged_and_say_so():
    report = judged(job(), with_bound(binding(), binding(CONV), believed=True, **FLAGS))
    assert codes(report) == []
    passed = [item.message for item in report.of("passed") if item.code in ("KC301", "KC305")]
    assert len(passed) == 3
    assert all("as if" in message for message in passed)
    seen_gpu = judged(job(), with_bound(binding(), binding(CONV), **FLAGS))
    assert not any("as if" in item.message for item in seen_gpu.of("passed"))


@pytest.mark.parametrize(
    ("reason", "words"),
    [("no_gpu", "make torch see the GPU"), ("refused", "in a release that this transformers accepts")],
)
def test_a_flag_that_is_off_is_a_finding_with_its_cause(reason, words):
    report = judged(job(), with_bound(binding(bound="eager", reason=reason), binding(CONV), **FLAGS), only="KC301")
    assert codes(report) == ["KC301"]
    assert words in the(report, "KC301").remedy


@pytest.mark.parametrize(("environment", "status"), [(NO_GPU, "not_judged"), (A_GPU, "failed"), (UNSEEN, "failed")])
def test_a_flag_that_is_off_since_no_gpu_is_in_sight_is_not_judged(environment, status):
    asked = job(profile="node", device="none")
    seams = with_bound(binding(bound="eager", reason="no_gpu"), binding(CONV), **FLAGS)
    snapshot = Snapshot(job=asked, seams=seams, environment=environment, gpus=Gpus())
    (check,) = [check for check in all_checks() if check.code == "KC301"]
    outcomes, crashes = judge(Case(asked, snapshot, CATALOG), [check])
    assert not crashes
    assert {item.status for item in outcomes if item.subject in (CHUNK, "fla")} == {status}


def test_a_norm_needs_no_boundary():
    asked = job(packing="both")
    norm = binding(NORM, parameters=("x", "g"))
    report = judged(asked, with_bound(binding(), binding(CONV), norm, **FLAGS), only="KC308")
    assert codes(report) == []
    deaf = judged(asked, with_bound(binding(parameters=("q",)), binding(CONV), norm, **FLAGS), only="KC308")
    assert "passes neither cu_seqlens nor seq_idx" in the(deaf, "KC308").message
    assert "transformers 5.15" in the(deaf, "KC308").remedy


def test_modelling_code_that_cannot_be_imported_is_one_finding():
    broken = Broken(
        how="raised", exception="ImportError", message="no GenerationMixin", chain=("ImportError: no GenerationMixin",)
    )
    report = judged(job(), Seams(bound=broken, entered=Missing(reason="the probe could not start")))
    assert codes(report) == ["KC305"]
    assert "no GenerationMixin" in the(report, "KC305").found


@pytest.mark.parametrize(
    ("asked", "ran", "status", "severity"),
    [
        ("sdpa", "sdpa", "passed", "error"),
        ("eager", "eager", "passed", "error"),
        ("flash_attention_2", "flash_attention", "passed", "error"),
        ("flash_attention_2", "eager", "failed", "error"),
        ("flash_attention_2", "sdpa", "failed", "error"),
        ("sdpa", "eager", "failed", "warning"),
        ("eager", "flash_attention", "note", "error"),
        ("eager", "sdpa", "note", "error"),
    ],
)
def test_attention_is_what_was_asked_for_and_what_is_seen_outranks_the_configuration(asked, ran, status, severity):
    run = entered(device="cuda", attention=(LayerAttention(layer=1, functions=(ran,)),), asked=asked)
    (said,) = one(judged(job(profile="node", device="cuda"), Seams(bound=GOOD.bound, entered=run)), "KC306")
    assert (said.status, said.severity) == (status, severity)


def test_flash_attention_is_not_judged_on_the_emulated_device():
    bound = bindings(binding(), binding(CONV), attention=AttentionPackages(asked="flash_attention_2"))
    (said,) = one(judged(job(), Seams(bound=bound, entered=entered(entry()))), "KC306")
    assert (said.status, said.required) == ("not_judged", False)


def test_attention_that_nobody_saw_is_not_judged_and_no_attention_does_not_apply():
    (unseen,) = one(judged(job(), with_run(entry(), attention=())), "KC306")
    assert unseen.status == "not_judged"
    (none,) = one(judged(job(), with_run(entry(), attention=(), layer_types=("linear_attention",))), "KC306")
    assert none.status == "not_applicable"


def hub(profile, **attention):
    asked = Job(profile=profile, device="none", model=qwen())
    bound = bindings(
        binding(),
        binding(CONV),
        kernels=KernelsPackage(version="0.18.2", available=True),
        attention=AttentionPackages(**attention),
    )
    return judged(asked, Seams(bound=bound, entered=Missing(reason="nothing ran")), only="KC307")


def test_a_kernel_of_the_hub_must_lie_in_the_image():
    asked = "kernels-community/flash-attn2"
    assert codes(hub("image", asked=asked)) == ["KC307"]
    assert codes(hub("image", asked="flash_attention_2", packages={"flash_attn": False})) == ["KC307"]
    assert hub("image", asked=asked, cached=True).exit_code == 0
    assert hub("node", asked=asked).exit_code == 3
    assert [
        item.status for item in hub("image", asked="flash_attention_2", packages={"flash_attn": True}).outcomes
    ] == ["not_applicable"]


def test_a_kernel_in_the_local_hub_cache_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    asked = "kernels-community/flash-attn2@v1:function"
    assert not in_hub_cache(asked)
    (tmp_path / "models--kernels-community--flash-attn2").mkdir()
    assert in_hub_cache(asked)
    assert not in_hub_cache("sdpa")
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.delenv("HUGGINGFACE_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", "/somewhere")
    assert hub_cache() == "/somewhere/hub"


def test_variables_about_the_hub_are_noted():
    bound = bindings(binding(), binding(CONV), variables={"USE_HUB_KERNELS": "NO"})
    report = judged(job(), Seams(bound=bound, entered=Missing(reason="nothing ran")), only="KC307")
    assert [item.message for item in report.of("note")] == ["set in this environment: USE_HUB_KERNELS=NO"]


def test_a_boundary_that_the_bound_op_does_not_take_is_a_finding():
    seams = with_bound(binding(), binding(CONV, parameters=("x", "weight", "bias", "activation")))
    report = judged(job(packing="both"), seams, only="KC308")
    assert codes(report) == ["KC308"]
    assert the(report, "KC308").subject == CONV
    for packing in (None, "position_ids"):
        assert [item.status for item in judged(job(packing=packing), seams, only="KC308").outcomes] == [
            "not_applicable"
        ]


def test_a_training_step_must_not_enter_an_op_without_a_backward():
    report = judged(job(), with_run(entry(), entry(CONV, kernels=()), entry(RECURRENT)), only="KC309")
    assert codes(report) == ["KC309"]
    assert the(report, "KC309").subject == RECURRENT
    decoding = judged(job(training=False), with_run(entry(RECURRENT), phase="decoding"), only="KC309")
    assert [item.status for item in decoding.outcomes] == ["not_applicable"]


def test_a_call_that_a_bound_op_refuses_is_a_finding():
    error = Error(
        exception="TypeError", message="got multiple values for argument 'seq_idx'", chain=("TypeError: got",)
    )
    run = with_run(entry(CONV, error=error, kernels=()), problem=error)
    report = judged(job(), run)
    assert codes(report) == ["KC310"]
    assert the(report, "KC310").subject == CONV
    assert "multiple values" in the(report, "KC310").message


def test_a_run_that_ends_outside_of_a_seam_is_not_judged():
    report = judged(job(), with_run(entry(), problem=Error(exception="ValueError", message="odd")), only="KC310")
    assert report.exit_code == 3


def test_a_run_that_kills_its_process_is_a_finding():
    broken = Broken(how="signal", message="killed by SIGSEGV", signal=11)
    report = judged(job(), Seams(bound=GOOD.bound, entered=broken), only="KC310")
    assert codes(report) == ["KC310"]


def test_without_a_device_the_bindings_are_inferred_and_the_node_is_inconclusive():
    asked = job(profile="node", device="none")
    report = judged(asked, Seams(bound=GOOD.bound, entered=Missing(reason="no device")))
    assert report.exit_code == 3
    assert {item.evidence for item in report.of("passed")} == {"inferred"}


def test_an_image_is_judged_by_its_bindings():
    asked = job(profile="image", device="none")
    report = judged(asked, Seams(bound=GOOD.bound, entered=Missing(reason="no device")))
    assert report.exit_code == 0
    assert not report.unjudged


def test_no_section_no_verdict():
    assert judged(job(), Missing(reason="no model was named (--model)")).exit_code == 3


def test_the_section_survives_json():
    assert msgspec.json.decode(msgspec.json.encode(GOOD), type=Seams) == GOOD
    assert CATALOG.model("qwen") is not None
