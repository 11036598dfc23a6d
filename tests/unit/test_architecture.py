"""The design, held by tests: who may import whom, and what a module may be.

docs/explanation/architecture.md draws the layers; this file is the contract behind the drawing.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SOURCE = PROJECT / "services" / "spillway"

#: From the ground up; a layer may import those before it. Modules at the top of the package count as layers.
LAYERS = (
    ("errors",),
    # What protoc makes of proto/: messages, without a line of ours.
    (
        "disk_reserve",
        "failpoints",
        "file_errors",
        "installation",
        "loopback",
        "memory",
        "open_files",
        "tls",
        "token_gate",
        "v1",
        "wording",
    ),
    ("connection_bound", "settings"),
    ("pg",),
    ("wal",),
    ("catalog",),
    ("decoding",),
    ("txlog",),
    ("plugins", "receiver", "store"),
    ("replay",),
    ("engine",),
    ("subscriber",),
    ("slot_manager", "stream", "admin"),
    ("interfaces", "lake", "certify"),
    ("serve", "demo"),
    ("cli",),
)
RANK = {layer: rank for rank, group in enumerate(LAYERS) for layer in group}

#: Layers that know less than what lies below them, and why.
GROUND = frozenset(
    {
        "connection_bound",
        "errors",
        "failpoints",
        "file_errors",
        "installation",
        "loopback",
        "settings",
        "tls",
        "token_gate",
        "wording",
        "pg",
    }
)
KNOWS_ONLY = {
    # The receiver moves WAL as bytes, whatever they mean.
    "receiver": GROUND,
    # Metadata is rows of slots and sources.
    "store": GROUND,
    # A client like any other: it knows the wire, and could be a package of its own. Without a service it decodes
    # archives, of which it knows what it hands its executors.
    # Its initial load asks the source itself, and makes of rows what the plugin makes of changes.
    "lake": GROUND
    | {
        "stream.client",
        "v1",
        "replay",
        "receiver.checks",
        "receiver.table_privileges",
        "receiver.connect_errors",
    }
    | {"receiver.conninfo", "plugins.arrow_copy", "plugins.arrow_schema", "catalog.descriptor"},
    # What it starts are clients; slots are the engine's, and what must be remembered the store's.
    "subscriber": GROUND | {"engine", "store"},
    # Interfaces serve the engine; what is below is the engine's business, but for what its values are made of.
    "slot_manager": GROUND | {"engine", "subscriber"},
    "stream": GROUND | {"engine", "plugins.messages", "subscriber", "v1"},
    "admin": GROUND | {"engine", "subscriber"},
    # The demo uses the service as a user does: as a program, over its interfaces.
    "demo": GROUND | {"stream.client", "lake"},
}

#: The lowest layer that a kernel (or a family of them) serves; that layer and those above may import it.
KERNELS = {
    "crc32c": "pg",
    "record_batch": "wal",
    "record_routes": "wal",
    "walker": "wal",
    "compress": "wal",
    "heap": "catalog",
    "catalog_tuples": "catalog",
    "changes": "decoding",
    "invalidation_items": "decoding",
    "reorder*": "decoding",
    "transaction_run": "decoding",
    "message_buffer": "plugins",
    "datum": "plugins",
    "change_cut": "plugins",
    "container": "plugins",
    "text_*": "plugins",
    "send_*": "plugins",
    "chunk_encoder": "plugins",
    "json_text": "plugins",
    "test_decoding": "plugins",
    "wal2json*": "plugins",
    "row_text": "plugins",
    "pgoutput*": "plugins",
    "row_filter": "plugins",
    "arrow_column": "plugins",
    "arrow": "plugins",
    "arrow_copy": "plugins",
}

#: Loaded by name, not by an import: programs, entry points, migrations.
ENTRY_POINTS = re.compile(
    r"cli(\.__main__)?|serve|slot_manager\.openapi|demo\.__main__|lake\.(job|jars)|subscriber\.hold|store\.migrations\.(env|versions\.\w+)|_kernels"
)

#: Modules that the service itself does not import, and what they are for.
UNUSED = {}


@dataclass(frozen=True)
class Module:
    name: str
    path: Path

    @property
    def layer(self) -> str:
        """The layer it belongs to; of a kernel, the one it serves."""
        first, _, rest = self.name.partition(".")
        if first == "_kernels":
            kernel = rest.split(".")[0]
            return next((layer for name, layer in KERNELS.items() if fnmatch(kernel, name)), "")
        return first


def _modules() -> list[Module]:
    modules = []
    for suffix in ("py", "pyx", "pxd"):
        for path in sorted(SOURCE.rglob(f"*.{suffix}")):
            parts = path.relative_to(SOURCE).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                modules.append(Module(name, path))
    return modules


MODULES = _modules()
NAMES = {module.name for module in MODULES}


@cache
def _imports(path: Path) -> frozenset[str]:
    """The modules of this package that a file imports, as names relative to the package."""
    text = path.read_text()
    found: set[str] = set()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level:
                pytest.fail(f"{path}: relative import; name modules in full")
    else:
        for match in re.finditer(
            r"^\s*from\s+([\w.]+)\s+c?import\s+(\([^)]*\)|.+)$", text, re.MULTILINE
        ):
            names = re.findall(r"(\w+)(?:\s+as\s+\w+)?\s*(?:,|\)|#|$)", match[2], re.MULTILINE)
            found.update(f"{match[1]}.{name}" for name in names)
        found.update(re.findall(r"^\s*c?import\s+([\w.]+)", text, re.MULTILINE))
    return frozenset(_resolve(name) for name in found if name.split(".")[0] == "spillway") - {""}


def _resolve(name: str) -> str:
    """The module that a dotted name, possibly of something in it, means."""
    parts = name.split(".")[1:]
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in NAMES:
            return ".".join(parts[:end])
    return ".".join(parts)


def _layer(imported: str) -> str:
    return Module(imported, Path()).layer


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.path.relative_to(SOURCE)))
def test_imports_point_downward(module: Module) -> None:
    if module.name in {"", "_kernels"}:
        return
    own = module.layer
    assert own in RANK, f"{module.name} belongs to no layer: name it in LAYERS or KERNELS"
    for imported in _imports(module.path) - {"_kernels", "__version__"}:
        other = _layer(imported)
        if other == own:
            continue
        assert other in RANK, f"{module.name} imports {imported}, which belongs to no layer"
        assert RANK[other] < RANK[own], f"{module.name} imports {imported}: that is not below it"
        if own in KNOWS_ONLY and not imported.startswith("_kernels."):
            known = KNOWS_ONLY[own]
            assert other in known or imported in known, (
                f"{module.name} imports {imported}: {own} may not know it"
            )


def test_the_layers_are_those_of_the_drawing() -> None:
    text = (PROJECT / "docs/explanation/architecture.md").read_text()
    drawing = text.split("## Who may import whom")[1].split("```")[1]
    drawn = [frozenset(line.split(" · ")) for line in drawing.strip().splitlines()]
    assert drawn == [frozenset(group) for group in reversed(LAYERS)]


def test_no_import_cycles() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module in MODULES:
        if module.path.suffix == ".py":
            graph[module.name] |= _run_time_imports(module.path) - {module.name}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for imported in graph.get(name, ()):
                visit(imported, (*trail, name))
            done.add(name)

    for name in list(graph):
        visit(name, ())


def _run_time_imports(path: Path) -> set[str]:
    """Imports at a module's top, those only for type checkers left out."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found.update(
                _resolve(alias.name) for alias in node.names if alias.name.startswith("spillway")
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spillway"):
            found.update(_resolve(f"{node.module}.{alias.name}") for alias in node.names)
    return found - {""}


def test_no_dead_modules() -> None:
    imported = set().union(*(_imports(module.path) for module in MODULES))
    texts = [path.read_text() for path in (PROJECT / "pyproject.toml", *SOURCE.rglob("*.py"))]
    # Modules that are imported when their name comes up (plugins, programs) are named in full somewhere.
    named = {name for text in texts for name in re.findall(r'"spillway\.([\w.]+)[":]', text)}
    dead = {
        module.name
        for module in MODULES
        if module.path.name not in {"__init__.py", "__init__.pxd"}
        and module.name not in imported | named
        and not ENTRY_POINTS.fullmatch(module.name)
    }
    assert dead == set(UNUSED), (
        f"nothing imports {dead - set(UNUSED)}; in use: {set(UNUSED) - dead}"
    )


def test_no_rag_bags() -> None:
    bags = [
        module.name
        for module in MODULES
        if re.search(r"(^|\.)(utils?|common|helpers?|misc)$", module.name)
    ]
    assert not bags, f"name these by what they are about: {bags}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.path.relative_to(SOURCE)))
def test_a_module_opens_with_what_it_is(module: Module) -> None:
    text = module.path.read_text()
    if module.path.suffix == ".py":
        assert ast.get_docstring(ast.parse(text)), f"{module.name} has no docstring"
    elif text.strip():
        assert re.match(r'(#[^\n]*\n|\s)*("""|#)', text), f"{module.name} has no docstring"


def test_every_kernel_is_built() -> None:
    for path in sorted((SOURCE / "_kernels").glob("*.pyx")):
        assert importlib.import_module(f"spillway._kernels.{path.stem}")


# The change format: C structs against the offsets in its Python description.

C_SIZES = {"uint8_t": 1, "uint16_t": 2, "uint32_t": 4, "uint64_t": 8}


def _structs() -> dict[str, list[tuple[int, int, str]]]:
    """(offset, size, field) of every packed struct in changes.pxd."""
    structs: dict[str, list[tuple[int, int, str]]] = {}
    text = (SOURCE / "_kernels" / "changes.pxd").read_text()
    for name, body in re.findall(r"cdef packed struct (\w+):\n((?:    .+\n)+)", text):
        offset = 0
        structs[name] = []
        for c_type, field, count in re.findall(r"(\w+) (\w+)(?:\[(\d+)\])?\n", body):
            size = C_SIZES[c_type] * int(count or 1)
            structs[name].append((offset, size, field))
            offset += size
    return structs


def test_change_format_is_the_same_in_c_and_in_words() -> None:
    from spillway.decoding import change_format

    structs = _structs()
    documented = [
        (int(offset), int(size), field)
        for offset, size, field in re.findall(
            r"^ {4}(\d+) +(\d+) +(\w+)", change_format.__doc__ or "", re.MULTILINE
        )
    ]
    in_order = [
        field
        for name in ("ChangeHeader", "TupleHeader", "ToastValueHeader")
        for field in structs[name]
    ]
    assert documented == in_order
    assert sum(size for _, size, _ in structs["ChangeHeader"]) == change_format.HEADER_SIZE
    assert sum(size for _, size, _ in structs["TupleHeader"]) == change_format.TUPLE_HEADER_SIZE


def test_change_format_constants_agree() -> None:
    from spillway.decoding import change_format

    text = (SOURCE / "_kernels" / "changes.pxd").read_text()
    constants = {
        name: int(value)
        for name, value in re.findall(r"^    ([A-Z_]+) = (\d+)$", text, re.MULTILINE)
    }
    python = {
        name: value
        for name, value in vars(change_format).items()
        if name.isupper() and isinstance(value, int) and not name.endswith("_SIZE")
    }
    assert constants == python


# Errors.


def _error_classes() -> list[type[Exception]]:
    from spillway import errors

    found: list[type[Exception]] = []

    def visit(cls: type[Exception]) -> None:
        found.append(cls)
        for subclass in cls.__subclasses__():
            if subclass.__module__ == errors.__name__:
                visit(subclass)

    visit(errors.SpillwayError)
    return found


def _tree(docstring: str) -> str:
    return docstring.partition("::\n")[2]


def test_error_codes_are_unique_and_drawn() -> None:
    from spillway import errors

    codes = [cls.code for cls in _error_classes()]  # type: ignore[attr-defined]
    assert len(codes) == len(set(codes))
    drawn = re.findall(
        r"^[│├└─ ]*(\w+) +([a-z_]+)(?: |$)", _tree(errors.__doc__ or ""), re.MULTILINE
    )
    assert set(drawn) == {(cls.__name__, cls.code) for cls in _error_classes()}  # type: ignore[attr-defined]


def test_errors_live_in_one_module() -> None:
    names = {cls.__name__ for cls in _error_classes()}
    for module in MODULES:
        if module.path.suffix != ".py" or module.name == "errors":
            continue
        for node in ast.walk(ast.parse(module.path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                assert not bases & names, (
                    f"{module.name}.{node.name} is an error: it belongs to errors.py"
                )


#: A comparison of a version with a number, whichever way round.
_VERSION_CHECK = re.compile(
    r"\b\w*(?:version|version_num|major)\s*(?:[<>]=?|[=!]=)\s*(?:1[0-9]{5}|1[4-9]|_PG_?\d+)\b"
    r"|\b(?:1[0-9]{5}|1[4-9])\s*(?:[<>]=?|[=!]=)\s*\w*(?:version_num|major)\b"
)
#: Places that may, and why.
_VERSION_CHECKS = {
    "pg/versions.py": "the table itself",
    "certify/": "writes SQL, and asks what the server at hand understands",
    "v1/": "what protoc makes compares gRPC's",
}


def test_versions_are_compared_in_their_table_only() -> None:
    """See spillway.pg.versions: what differs has a name there."""
    found = []
    for path in sorted((*SOURCE.rglob("*.py"), *SOURCE.rglob("*.pyx"))):
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith(tuple(_VERSION_CHECKS)):
            continue
        found += [
            f"{name}:{number}: {line.strip()}"
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if _VERSION_CHECK.search(line)
        ]
    assert not found


def test_version_checks_are_recognised() -> None:
    for line in (
        "if server_version_num >= 160000:",
        "x = major < 15",
        "if 170000 <= server_version_num:",
    ):
        assert _VERSION_CHECK.search(line), line


def test_no_two_test_modules_share_a_name() -> None:
    """Outside packages a test module's name is its file's: a second one fails when all are collected, and only then."""
    tests = Path(__file__).parents[1]
    names = [
        path.name for path in tests.rglob("test_*.py") if not (path.parent / "__init__.py").exists()
    ]
    assert sorted(set(names)) == sorted(names)
