"""terraform/docs, written from the schemas: ``python -m terraform_provider_spillway.reference`` in
terraform/.

The layout is the one of Terraform's registry: index.md, resources/NAME.md, data-sources/NAME.md.
Examples are the files in examples/, so that what the pages show is what the tests run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tf.types import Bool, List, Map, Number, Set, String, Unknown

from terraform_provider_spillway.provider import (
    ADDRESS,
    DESCRIPTION,
    FIELDS,
    VERSION,
    SpillwayProvider,
)
from terraform_provider_spillway.schema import Field, NestedField

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tf.types import TfType

_GENERATED = (
    "<!-- Written by python -m terraform_provider_spillway.reference; change the schemas instead. "
    "-->\n"
)


def pages(project: Path) -> dict[Path, str]:
    """Give every page of docs/ below *project*, the folder of this package's pyproject.toml."""
    provider = SpillwayProvider()
    written = {Path("docs/index.md"): _index(project)}
    for folder, kind, things in (
        ("resources", "resource", provider.get_resources()),
        ("data-sources", "data source", provider.get_data_sources()),
    ):
        for thing in things:
            path = Path(f"docs/{folder}/{thing.name}.md")
            example = project / "examples" / folder / f"spillway_{thing.name}.tf"
            written[path] = "\n".join(_page(thing, kind, example))
    return written


def _index(project: Path) -> str:
    example = (project / "examples" / "lake" / "main.tf").read_text()
    return "\n".join(
        (
            _GENERATED,
            "# Spillway provider",
            "",
            DESCRIPTION,
            "",
            (
                "It is in no registry yet: [install it](../../docs/how-to/terraform.md), then "
                f"configurations name it `{ADDRESS}`. Version {VERSION}, plugin protocol 6 "
                "(Terraform 1.0 or later, OpenTofu)."
            ),
            "",
            "```terraform",
            example.rstrip(),
            "```",
            "",
            "## Arguments",
            "",
            *_rows(FIELDS),
            "",
            (
                "When the service can't be reached, is starting or is overloaded, calls are tried "
                "again with growing pauses. A call that may have been done, and can't be done "
                "twice, is not."
            ),
            "",
        )
    )


def _page(thing: type, kind: str, example: Path) -> Iterator[str]:
    fields: Sequence[Field] = thing.fields  # type: ignore[attr-defined]
    name: str = thing.name  # type: ignore[attr-defined]
    description: str = thing.description  # type: ignore[attr-defined]
    yield _GENERATED
    yield f"# spillway_{name} ({kind})\n"
    yield description + "\n"
    yield f"```terraform\n{example.read_text().rstrip()}\n```\n"
    given = [field for field in fields if field.required or field.optional]
    yield "## Arguments\n"
    yield from _rows(given)
    yield ""
    told = [field for field in fields if not (field.required or field.optional)]
    if told:
        yield "## Attributes\n"
        yield from _rows(told)
        yield ""
    yield from _nested(fields)
    if kind == "resource":
        yield "## Import\n"
        key = fields[0].name
        yield f"By its name, `{key}`:\n"
        yield f'```terraform\nimport {{\n  to = spillway_{name}.this\n  id = "the_{key}"\n}}\n```\n'


def _nested(fields: Sequence[Field]) -> Iterator[str]:
    """Give a section for each attribute that is an object, and for those in it."""
    for field in fields:
        if isinstance(field, NestedField):
            yield f"## {field.name}\n"
            yield from _rows(field.fields)
            yield ""
            yield from _nested(field.fields)


def _rows(fields: Sequence[Field]) -> Iterator[str]:
    yield "| | | |"
    yield "|---|---|---|"
    for field in sorted(fields, key=lambda field: not field.required):
        yield f"| `{field.name}` | {_type(field)} | {' '.join(_notes(field))} |"


def _notes(field: Field) -> Iterator[str]:
    yield (field.description or "").replace("|", "\\|")
    if field.required:
        yield "**Required.**"
    if field.optional and field.default is not Unknown:
        default = str(field.default).lower() if isinstance(field.default, bool) else field.default
        yield f"Default: `{default}`."
    if field.requires_replace:
        yield "A change replaces it."
    if field.write_only:
        yield "Write-only: no state has it."
    elif field.sensitive:
        yield "Sensitive."


def _type(field: Field) -> str:
    if isinstance(field, NestedField):
        return f"[{'object' if field.nesting == 'single' else 'list of objects'}](#{field.name})"
    return _name(field.type)


def _name(type_: TfType) -> str:
    if isinstance(type_, Map):
        return f"map of {_name(type_.element_type)}"
    if isinstance(type_, Set):
        return f"set of {_name(type_.element_type)}"
    if isinstance(type_, List):
        return f"list of {_name(type_.element_type)}"
    return {String: "string", Number: "number", Bool: "bool"}[type(type_)]


def main() -> None:
    """Write the pages, or with ``--check`` say which are not current."""
    project = Path.cwd()
    stale = []
    for path, text in pages(project).items():
        file = project / path
        if "--check" in sys.argv[1:]:
            if not file.exists() or file.read_text() != text:
                stale.append(str(path))
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if stale:
        sys.exit(
            f"not current: {', '.join(stale)}; run python -m terraform_provider_spillway.reference "
            "in terraform/"
        )


if __name__ == "__main__":
    main()
