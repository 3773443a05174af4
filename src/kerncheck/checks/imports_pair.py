"""Whether a wrapper and its compiled extension belong together, from what both were seen to say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from packaging.version import InvalidVersion, Version

from kerncheck.model.base import Missing
from kerncheck.model.imports import Imported, Offer, PackageImport, Use


def differences(package: PackageImport) -> list[str]:
    """Return in words what a wrapper's source wants of an extension that the extension does not offer."""
    offers = offered(package)
    told: dict[tuple[str, str], list[str]] = {}
    for use in package.calls:
        if use.extension in offers:
            told.setdefault((use.extension, use.name), []).append(difference(use, offers[use.extension]))
    # A wrapper may call a function in several ways and choose by release: one that fits is enough.
    return list(dict.fromkeys(texts[0] for texts in told.values() if all(texts)))


def offered(package: PackageImport) -> dict[str, dict[str, Offer]]:
    """Return {extension: {name: offer}} of the extensions that import and show their names."""
    results = {attempt.module: attempt.result for attempt in package.extensions}
    return {
        module: {offer.name: offer for offer in result.names}
        for module, result in results.items()
        if isinstance(result, Imported) and result.names
    }


def difference(use: Use, offers: dict[str, Offer]) -> str:
    """Return what is wrong with one use, "" if nothing is."""
    where = f"{PurePath(use.file).name}:{use.line}"
    offer = offers.get(use.name)
    if offer is None:
        return f"{where} calls {use.extension}.{use.name}, which the extension does not have"
    if use.arguments is None or offer.least is None or offer.most is None:
        return ""
    if offer.least <= use.arguments <= offer.most:
        return ""
    takes = str(offer.most) if offer.least == offer.most else f"{offer.least} to {offer.most}"
    return f"{where} passes {use.arguments} arguments to {use.extension}.{use.name}, which takes {takes}"


def other_version(package: PackageImport) -> str:
    """Return in words that the imported module's own version is that of no installed distribution; "" if it fits."""
    root = package.root.result
    owned = () if isinstance(package.distributions, Missing) else package.distributions
    if not isinstance(root, Imported) or not root.version or not owned:
        return ""
    own = public(root.version)
    metadata = [public(item.version) for item in owned]
    if not own or not all(metadata) or own in metadata:
        return ""
    told = ", ".join(f"{item.name} {item.version}" for item in owned)
    return f"the module {root.file} says that it is {root.version}, the metadata says {told}"


def public(version: str) -> str:
    """Return a version without its local tag, "" for what is no version."""
    try:
        return Version(version).public
    except InvalidVersion:
        return ""


def foreign_files(package: PackageImport, suffixes: tuple[str, ...]) -> Iterator[str]:
    """Yield extension files that this Python does not load, since they were built for another one."""
    for path in package.files:
        if wrong_tag(PurePath(path).name, suffixes):
            yield path


def wrong_tag(name: str, suffixes: tuple[str, ...]) -> bool:
    """Tell whether a file's name carries a Python tag that is not among the suffixes of this one."""
    tag = name.partition(".")[2]
    return "." in tag and "." + tag not in suffixes
