"""Write docs/CONFIGURATION.md from the config classes; `--check` only says whether it is current.

What a key means is its `#:` comment in `tiercache/config.py`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tiercache import config, policies_registry
from tiercache.config_fields import Setting, settings, show_value
from tiercache.config_file import SECTIONS

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "CONFIGURATION.md"

HEAD = """\
<!-- Written by scripts/configuration_docs.py from tiercache/config.py; do not edit. -->

# Configuration

`tiercache config init` writes a commented file with all of this, `tiercache config check FILE` says
everything that is wrong with one, and `tiercache config show FILE` prints what is in effect and
where each value comes from. Sizes are bytes or text like `"64MiB"` (binary) and `"1TB"` (decimal);
rates bytes per second or text like `"500MiB/s"`; durations are seconds or text like `"250ms"`,
`"60s"`, `"5m"`, `"1h"`.

Keys are read when a mount starts. `tiercache reload MOUNTPOINT`, or SIGHUP to its holder, reads the
file again under the options that the mount was started with: a file with anything wrong in it
changes nothing, keys marked *live* take effect at once, and of the others the answer says that they
need a remount. Live keys of a tier are applied while its name and paths stay the same. What the
kernel was told of a name it believes for the time it was told then, whatever `metadata_ttl` is now.
"""

POLICIES = """
## `[policy.NAME]`

Parameters of the policy that a tier names. A policy that is not registered is named by
`entry_point = "package.module:Class"`; what it can be told is what its class declares.
"""

KINDS = {
    "bytes": "size",
    "sizes": "table of sizes",
    "bytes/s": "rate",
    "seconds": "duration",
    "octal": "octal",
}
TYPES = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
    Path: "path",
    tuple[Path, ...]: "list of paths",
    tuple[str, ...]: "list of texts",
}


def comments(section: type) -> Mapping[str, str]:
    """The `#:` comment above each field of dataclass *section*."""
    source = inspect.getsource(section)
    lines = source.splitlines()
    fields = [item for item in ast.parse(source).body[0].body if isinstance(item, ast.AnnAssign)]
    return {item.target.id: " ".join(_above(lines, item.lineno - 1)) for item in fields}


def _above(lines: list[str], end: int) -> list[str]:
    begin = end
    while lines[begin - 1].lstrip().startswith("#:"):
        begin -= 1
    return [line.strip().removeprefix("#:").strip() for line in lines[begin:end]]


def rows(section: type) -> Iterator[str]:
    """One line of a table for each key of *section*."""
    said = comments(section)
    defaults = {item.name: item for item in dataclasses.fields(section)}
    yield "| key | type | default | allowed | live | what it is |"
    yield "|---|---|---|---|---|---|"
    for key, setting in settings(section).items():
        text = said[setting.field].replace("None: ", "Not set: ")
        kind = KINDS.get(setting.unit or "", "") or TYPES.get(setting.type)
        if kind is not None:
            default = _default(setting, defaults[setting.field])
            live = "live" if setting.meta.get("live") else ""
            yield f"| `{key}` | {kind} | {default} | {_allowed(setting)} | {live} | {text} |"


def _default(setting: Setting, item: dataclasses.Field[object]) -> str:
    if setting.required:
        return "required"
    return "not set" if item.default is None else f"`{_value(setting, item.default)}`"


def _value(setting: Setting, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return show_value(setting, value)
    return str(value)


def _allowed(setting: Setting) -> str:
    if choices := setting.meta.get("choices"):
        return ", ".join(f"`{choice}`" for choice in choices)
    low, high = setting.meta.get("low"), setting.meta.get("high")
    limits = [
        f"{word} {_value(setting, limit)}"
        for word, limit in (("at least", low), ("at most", high))
        if limit is not None
    ]
    return ", ".join(limits)


def document() -> str:
    """The whole page."""
    first = {"": config.Config, "origin": SECTIONS["origin"], "mount": SECTIONS["mount"]}
    chapters = {**first, "tier": config.TierConfig, "rule": config.RuleConfig, **SECTIONS}
    return HEAD + "".join(_chapter(*chapter) for chapter in chapters.items()) + _policies()


def _policies() -> str:
    lines = [POLICIES, "| policy | key | default | allowed | what it is |", "|---|---|---|---|---|"]
    for name in policies_registry.names():
        for key, param in policies_registry.params_of(policies_registry.find(name)).items():
            default = "`[heat] half_life`" if key == "half_life" else f"`{param.default:g}`"
            limits = f"{param.low:g} to {param.high:g}"
            lines.append(f"| {name} | `{key}` | {default} | {limits} | {param.doc} |")
    return "\n".join(lines) + "\n"


def _chapter(name: str, section: type) -> str:
    if not name:
        return "\n## Outside of any section\n\n" + "\n".join(rows(section)) + "\n"
    title, _, text = inspect.getdoc(section).partition(": ")
    return f"\n## {title}\n\n{text[0].upper()}{text[1:]}\n\n" + "\n".join(rows(section)) + "\n"


def main() -> int:
    """Write the page, or with `--check` compare it."""
    page = document()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(page, encoding="utf-8")
        return 0
    if TARGET.read_text(encoding="utf-8") == page:
        return 0
    sys.stderr.write(f"{TARGET} is not current; run {Path(__file__).name}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
