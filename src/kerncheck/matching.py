"""Does a condition of the matrix hold on a machine? Three answers: yes, no, and unknown (None)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet

from kerncheck.model.matrix import ANY, Condition, KnownBad
from kerncheck.versions import holds, parse

Answer = bool | None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a condition is asked about. ``packages`` maps canonical distribution names to versions.

    ``cc`` lists the capabilities of the GPUs; None when they are not known. ``tools`` says of each known tool whether
    it is there; a tool that is not listed is unknown.
    """

    packages: Mapping[str, str]
    cc: tuple[str, ...] | None = None
    tools: Mapping[str, bool] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    torch_cuda: str = ""


def every(answers: Iterable[Answer]) -> Answer:
    """Return False if one is False, else None if one is unknown, else True."""
    given = list(answers)
    if False in given:
        return False
    return None if None in given else True


def some(answers: Iterable[Answer]) -> Answer:
    """Return True if one is True, else None if one is unknown, else False."""
    given = list(answers)
    if True in given:
        return True
    return None if None in given else False


def met(condition: Condition, setting: Setting) -> Answer:
    """Tell whether all parts of a condition hold."""
    return every(
        (
            on_gpu(condition, setting),
            *(installed(name, wanted, setting) for name, wanted in condition.packages.items()),
            *(name not in setting.packages for name in condition.absent),
            *(setting.tools.get(name) for name in condition.tools),
            *(opposite(setting.tools.get(name)) for name in condition.without),
            *(setting.variables.get(name) in values for name, values in condition.variables.items()),
            *(setting.variables.get(name) not in values for name, values in condition.not_variables.items()),
            *(bool(setting.variables.get(name)) for name in condition.variables_set),
            within(condition.python, setting.python),
            within(condition.torch_cuda, setting.torch_cuda),
        )
    )


def on_gpu(condition: Condition, setting: Setting) -> Answer:
    """Tell whether one of the GPUs is one that the condition speaks of."""
    if not condition.cc and not condition.not_cc and not condition.cc_below:
        return True
    if setting.cc is None:
        return None
    return any(covers(condition, cc) for cc in setting.cc)


def covers(condition: Condition, cc: str) -> bool:
    """Tell whether a condition speaks of this capability."""
    below = not condition.cc_below or older(cc, condition.cc_below)
    return below and cc not in condition.not_cc and (not condition.cc or cc in condition.cc)


def older(left: str, right: str) -> bool:
    """Tell whether one capability is below another."""
    first, second = parse(left), parse(right)
    return first is not None and second is not None and first < second


def installed(name: str, wanted: SpecifierSet, setting: Setting) -> Answer:
    """Tell whether a distribution is installed in a range. An absent one is in no range."""
    version = setting.packages.get(name)
    return False if version is None else holds(wanted, version)


def within(wanted: SpecifierSet, version: str) -> Answer:
    """Tell whether a version, which may be unknown (empty), lies in a range."""
    if wanted == ANY:
        return True
    return holds(wanted, version) if version else None


def opposite(answer: Answer) -> Answer:
    """Return no for yes, yes for no, unknown for unknown."""
    return None if answer is None else not answer


def applies(row: KnownBad, setting: Setting, version: str) -> Answer:
    """Tell whether a known-bad row describes this machine; ``version`` is that of the row's package."""
    bad = every((holds(row.versions, version), met(row.when, setting)))
    if bad is False:
        return False
    lifted = some(met(condition, setting) for condition in row.unless)
    return every((bad, opposite(lifted)))
