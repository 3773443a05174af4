"""Plug-ins: kernel packages that third parties describe. Their data become specs; their code is for children alone."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from kerncheck import kernels
from kerncheck.kernels import CellPlan, OpSpec
from kerncheck.model.base import Missing
from kerncheck.model.environment import Environment
from kerncheck.model.plugin import CellText, OpText, PluginSeen, PluginText

DEVICES = ("emulate", "cuda")


class PluginError(Exception):
    """Why a plug-in cannot be used, in one line."""


@dataclass(frozen=True)
class Plugged:
    """The specs of all sound plug-ins, and for each that is broken what is wrong with it."""

    specs: tuple[OpSpec, ...] = ()
    broken: dict[str, str] = field(default_factory=dict)

    def of(self, plugin: str) -> tuple[OpSpec, ...]:
        """Return the specs of one plug-in."""
        return tuple(spec for spec in self.specs if spec.plugin == plugin)


def read(environment: Environment | Missing) -> Plugged:
    """Return what the plug-ins of an environment describe. Of two that describe one op, the second is broken."""
    seen = () if isinstance(environment, Missing) or isinstance(environment.plugins, Missing) else environment.plugins
    return read_all(seen)


def read_all(seen: tuple[PluginSeen, ...]) -> Plugged:
    """Read the descriptions one by one, so that a broken one takes no other with it."""
    specs: list[OpSpec] = []
    broken: dict[str, str] = {}
    names: set[str] = set()
    own = {spec.id: "kerncheck itself" for spec in kernels.own_specs()}
    for plugin in seen:
        try:
            taken = {**own, **{spec.id: f"plug-in {spec.plugin}" for spec in specs}}
            specs += specs_of(plugin, taken, names)
        except PluginError as error:
            broken[label(plugin, broken)] = str(error)
        names.add(plugin.name)
    return Plugged(tuple(specs), broken)


def label(plugin: PluginSeen, taken: dict[str, str]) -> str:
    """Return the name by which a broken plug-in is told, once more with its distribution where that is needed."""
    return plugin.name if plugin.name not in taken else f"{plugin.name} of {plugin.distribution}"


def specs_of(plugin: PluginSeen, taken: dict[str, str], names: set[str]) -> list[OpSpec]:
    """Return the specs of one plug-in. Raises PluginError, with all that a person needs to mend it."""
    if plugin.name in names:
        raise PluginError(f"two installed distributions offer a plug-in {plugin.name}, this one {plugin.distribution}")
    if plugin.problem:
        raise PluginError(plugin.problem)
    try:
        text = msgspec.convert(tomllib.loads(plugin.text), PluginText)
    except msgspec.ValidationError as error:
        raise PluginError(f"kerncheck.toml: {error}") from None
    except (ValueError, RecursionError) as error:  # a number of 5000 digits, brackets in brackets
        raise PluginError(f"kerncheck.toml is not TOML: {error}") from None
    if text.code not in plugin.modules:
        raise PluginError(f"code = {text.code!r} names no module beside kerncheck.toml in {plugin.value}")
    seen: set[str] = set()
    for op in text.op:
        owner = taken.get(op.id, "its own kerncheck.toml, twice" if op.id in seen else "")
        if owner:
            raise PluginError(f"op {op.id} is described already, by {owner}")
        seen.add(op.id)
        sound(op, text)
    return [spec_of(op, text, plugin) for op in text.op]


def sound(op: OpText, text: PluginText) -> None:
    """Raise PluginError for what types alone cannot say."""
    root = op.id.partition(":")[0].partition(".")[0]
    if root != text.import_name:
        raise PluginError(f"op {op.id} does not lie in the package {text.import_name} (import_name)")
    if (op.library == "cuda") != bool(op.extension):
        raise PluginError(f"op {op.id}: library = 'cuda' names its compiled module in `extension`, 'triton' has none")
    for device in DEVICES if op.library == "triton" else ("cuda",):
        cells = [cell for cell in op.cell if cell.device in (device, "both")]
        if not any(cell.quick and not cell.cuts for cell in cells):
            raise PluginError(f"op {op.id} has no cell for {device} with quick = true and without cuts")
        names = [cell.name for cell in cells]
        if len(set(names)) < len(names):
            raise PluginError(f"op {op.id} has two cells of one name for {device}")
    for cell in op.cell:
        if any(at >= sum(cell.lengths) for at in cell.cuts):
            raise PluginError(f"op {op.id}, cell {cell.name}: a cut lies behind the last token")


def spec_of(op: OpText, text: PluginText, plugin: PluginSeen) -> OpSpec:
    """Return an op in the form that the stages and checks know."""
    return OpSpec(
        id=op.id,
        package=text.package,
        import_name=text.import_name,
        distributions=text.distributions,
        module_candidates=op.module_candidates,
        library=op.library,
        has_backward=op.backward,
        needs=text.needs,
        form=op.form,
        file="",
        code=f"{plugin.value}.{text.code}",
        extension=op.extension,
        unordered=op.unordered,
        plugin=plugin.name,
        own_cells={
            device: tuple(plan_of(cell) for cell in op.cell if cell.device in (device, "both")) for device in DEVICES
        },
    )


def plan_of(cell: CellText) -> CellPlan:
    """Return one cell as the stages know it."""
    given = msgspec.structs.asdict(cell)
    del given["device"]
    return CellPlan(**given)


@contextlib.contextmanager
def plugged(environment: Environment | Missing) -> Iterator[Plugged]:
    """Let the ops that an environment's plug-ins describe be known while the block runs."""
    found = read(environment)
    with kernels.added(found.specs):
        yield found
