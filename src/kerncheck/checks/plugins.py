"""KC002: what third parties describe for kerncheck can be read."""

from __future__ import annotations

from collections.abc import Iterator

from kerncheck.checks.registry import Case, check
from kerncheck.model.base import Missing, seen
from kerncheck.model.outcome import Outcome, Say
from kerncheck.model.plugin import PluginSeen
from kerncheck.plugins import read


@check("KC002", "every plug-in of kerncheck can be read", needs=("environment",))
def plugins_sound(case: Case, say: Say) -> Iterator[Outcome]:
    """A plug-in that describes a kernel package must be sound, or its ops are judged by nobody.

    What it checks
        Every entry point kerncheck.kernels of the judged interpreter: its package holds a kerncheck.toml of version 1,
        whose fields have the right types; its code lies beside it; its ops are described once and have cells.
    Why it matters
        A plug-in that is passed over in silence looks like kernels that passed.
    Example
        plug-in swiglu: kerncheck.toml: Expected `int`, got `str` - at `$.op[0].cell[0].seeds`
    How to fix
        Mend what the message names (docs/plug-ins.md has every field), or update the distribution that brings it.
    """
    plugins = seen(case.snapshot.environment).plugins
    if isinstance(plugins, Missing):
        yield say.not_judged("plug-ins", f"the entry points could not be read: {plugins.reason}")
        return
    if not plugins:
        yield say.not_applicable("plug-ins", "none is installed for the judged interpreter")
        return
    found = read(case.snapshot.environment)
    for name, reason in found.broken.items():
        yield broken(say, name, reason, plugins)
    for plugin in {spec.plugin: spec for spec in found.specs}:
        ops = ", ".join(spec.id for spec in found.of(plugin))
        when = "" if case.job.model is None else "; judged where the model needs them, or no model is named"
        yield say.passed(f"plug-in {plugin}", f"describes {ops}{when}", "declared")


def broken(say: Say, name: str, reason: str, plugins: tuple[PluginSeen, ...]) -> Outcome:
    """Say what is wrong with one plug-in, and who brings it."""
    own = next((plugin for plugin in plugins if name in (plugin.name, f"{plugin.name} of {plugin.distribution}")), None)
    source = f"{own.distribution} {own.version}".strip() if own else ""
    return say.failed(
        f"plug-in {name}",
        f"plug-in {name} cannot be used: {reason}",
        found=f"{own.file or own.value} of {source or 'a distribution without a name'}" if own else reason,
        wanted="a description that kerncheck can read, so that the ops of the plug-in are judged",
        remedy=f"mend it as docs/plug-ins.md says, or install another version of {source or 'what brings it'}",
    )
