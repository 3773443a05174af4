"""Words for a seam that is bound to its eager reference: what was found, why, and what to do about it."""

from __future__ import annotations

from kerncheck.catalog import Catalog
from kerncheck.model.seams import Binding, Reason

NO_REASON = Reason(kind="late", message="")


def reason_of(item: Binding) -> Reason:
    """Return the reason that the probe found."""
    return item.reason or NO_REASON


def why(item: Binding) -> str:
    """Return the cause in a few words."""
    reason = reason_of(item)
    misleads = '(transformers says "not installed", which misleads)'
    texts = {
        "absent": f"{item.package} is not installed",
        "broken": f"installed, but {reason.message} {misleads}",
        "hidden": f"{item.package} is hidden in this process {misleads}",
        "no_op": f"{item.package} imports, but {reason.message} {misleads}",
        "root_only": f"{item.package} imports, but this transformers looks in its root only, and {reason.message}",
        "late": f"the modelling code was imported before {item.package} could be; a seam is bound once",
        "replaced": f"the seam {item.name} was replaced after the import",
        "no_gpu": reason.message,
        "refused": f"{reason.message} (its version or its metadata does not satisfy this transformers)",
    }
    if item.bound == "replaced":
        return f"the seam {item.name} was replaced by {item.target}, which is no function of that package"
    return texts[reason.kind]


def found_text(item: Binding) -> str:
    """Return what was found: the bound function, and the real exception where there is one."""
    chain = reason_of(item).chain
    return f"{item.name} is bound to {item.target}" + (f"; {' < '.join(chain)}" if chain else "")


def remedy(item: Binding, catalog: Catalog | None) -> str:
    """Return what to do, for this cause."""
    texts = {
        "absent": f"{install(item.package, catalog)}, then start the process anew",
        "broken": f"mend the import of {item.package} (KC2xx names the cause), then start the process anew",
        "hidden": f"remove what sets sys.modules[{item.package!r}] to None, then start the process anew",
        "no_op": f"use releases of transformers and {item.package} that were made for each other: "
        f"this {item.package} has no {item.function}",
        "root_only": f"use transformers 5.17 or later, or a {item.package} whose root offers {item.function}",
        "late": f"import {item.package} before transformers' modelling code, and start the process anew",
        "no_gpu": "make torch see the GPU (KC1xx says why it does not) before transformers is imported",
        "refused": f"{install(item.package, catalog)} in a release that this transformers accepts, then start anew",
        "replaced": f"take the patch of {item.module}.{item.name} away, and start the process anew",
    }
    return texts["replaced" if item.bound == "replaced" else reason_of(item).kind]


def install(package: str, catalog: Catalog | None) -> str:
    """Return how to install a package, in the catalog's words if it knows them."""
    files = catalog.kernels.values() if catalog else ()
    known = next((item.package.install for item in files if package in item.package.modules), "")
    return f"run: {known}" if known else f"install {package} into this environment"
