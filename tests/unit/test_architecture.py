"""The design, held by tests: who may import whom, and what a module may be.

docs/explanation/architecture.md draws the layers; this file is the contract behind the drawing.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SOURCE = PROJECT / "services" / "spillway"

#: From the ground up; a layer may import those before it. Modules at the top of the package count
#: as layers.
LAYERS = (
    ("errors",),
    # What protoc makes of proto/: messages, without a line of ours.
    (
        "amounts",
        "caller",
        "collector",
        "failpoints",
        "installation",
        "instants",
        "listener_signs",
        "loop_turn",
        "loopback",
        "memory",
        "open_files",
        "tls",
        "token_gate",
        "v1",
        "wording",
    ),
    ("connection_bound", "declarations", "settings"),
    ("pg",),
    ("storage",),
    ("wal",),
    ("catalog",),
    ("decoding",),
    ("txlog",),
    ("plugins", "receiver", "store"),
    ("replay", "source_snapshots"),
    ("sessions", "delivery"),
    ("service",),
    ("subscriber", "users"),
    ("watch",),
    ("alerts",),
    ("slot_manager", "stream", "walsender", "admin"),
    ("consumer",),
    ("interfaces", "lake", "apply", "certify"),
    ("serve", "demo"),
    ("cli",),
)
RANK = {layer: rank for rank, group in enumerate(LAYERS) for layer in group}

#: Layers that know less than what lies below them, and why.
GROUND = frozenset(
    {
        "amounts",
        "caller",
        "connection_bound",
        "declarations",
        "errors",
        "failpoints",
        "installation",
        "instants",
        "listener_signs",
        "loop_turn",
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
    "receiver": GROUND | {"storage"},
    # What is durable is the same whatever it means.
    "storage": GROUND,
    # What a worker runs, from a source to its logs: what anybody reads there, and as what, is
    # nothing to it.
    "sessions": GROUND
    | {"collector", "memory", "storage", "wal", "catalog", "decoding", "txlog", "receiver"}
    | {"store.rows"},
    # What serves slots begins at the log's reader, whoever writes there: no WAL, no catalog, no
    # source.
    "delivery": GROUND
    | {"decoding", "txlog.reader", "txlog.cursor", "plugins", "store"}
    # Who looks for changes is told by the log where they are, and tells columns by their names.
    | {"txlog.contents", "txlog.segment", "catalog.descriptor"},
    # Metadata is rows of slots and sources.
    "store": GROUND,
    # A client like any other: it knows the wire, and could be a package of its own. Of the source's
    # tables it asks the source itself, and makes of rows what the plugin makes of changes.
    "consumer": GROUND
    | {"storage", "stream.client", "v1", "receiver.table_privileges"}
    | {"receiver.temporary_slot"}
    | {"plugins.arrow_copy", "plugins.arrow_schema", "catalog.descriptor"}
    # how the plugin shows tables
    | {"plugins.shown_tables"},
    # What a consumer knows, and without a service it decodes archives, of which it knows what it
    # hands its executors.
    "lake": GROUND
    | {
        "storage",
        "consumer",
        "replay",
        "receiver.checks",
        "receiver.table_privileges",
    }
    | {"stream.client", "v1", "plugins.arrow_copy", "plugins.arrow_schema", "catalog.descriptor"}
    # how the plugin tells of values that it has no form for, of partitions and of masks
    | {"plugins.refused_values", "plugins.partition_roots", "plugins.masks"},
    # What a consumer knows, and what checks of a source and of a connection are worth for a target,
    # too.
    "apply": GROUND
    | {"storage", "consumer", "stream.client"}
    | {"stream.own_client", "stream.wire", "receiver.table_privileges", "plugins.messages", "v1"}
    | {"collector", "memory"},
    # What it starts are clients; slots are the service's, and what must be remembered the store's.
    "subscriber": GROUND | {"service", "storage", "store"},
    # Interfaces stand on the service; what is below is its business, but for what its values are
    # made of.
    "slot_manager": GROUND | {"service", "subscriber", "users", "alerts", "watch"},
    "stream": GROUND
    | {"service", "plugins.messages", "subscriber", "v1", "alerts", "watch", "store.rows"},
    "admin": GROUND | {"service", "subscriber", "watch", "alerts"},
    # What is seen from above; who did what is stored, and how everything was.
    "watch": GROUND
    | {"service", "subscriber", "store.rows", "store.events", "store.metrics"}
    | {"store.schema_changes"},
    # What is wrong is the watch's to say, and what was told the store's to remember.
    "alerts": GROUND | {"service", "store", "watch"},
    # What clients ask of a source itself is asked as the receiver asks.
    "walsender": GROUND
    | {"service", "users", "store.rows", "receiver.primary", "receiver.source_session"}
    # What a source said last is remembered for when it can't be asked.
    | {"store.session_settings"},
    # Rows of the metadata store.
    "users": GROUND | {"store"},
    # The demo uses the service as a user does: as a program, over its interfaces.
    "demo": GROUND | {"stream.client", "lake"},
}

#: The rooms of ``lake/``, from the ground up, as LAYERS; a module that lies in none is a room of
#: its own.
LAKE_ROOMS = (
    ("lease", "load_anew"),
    ("shape",),
    ("key_index", "state"),
    ("jars", "source", "worker_failures"),
    ("session",),
    ("tables",),
    ("batch",),
    ("catalogs", "load", "metrics"),
    ("listener", "pinned_tables", "read", "replay"),
    ("job",),
    ("verify",),
    ("commands",),
)
LAKE_RANK = {room: rank for rank, group in enumerate(LAKE_ROOMS) for room in group}
#: What ``consumer/`` is without: it serves those who have none of it.
LAKE_PACKAGES = frozenset(
    {"pyspark", "py4j", "delta", "deltalake", "pyiceberg", "obstore", "pandas"}
)

#: The rooms of ``_kernels/``, from the ground up, and the lowest layer that each of them serves;
#: that layer and those above may import it.
KERNEL_ROOMS = {
    "pg": "pg",
    "wal": "wal",
    "catalog": "catalog",
    "reorder": "decoding",
    "messages": "plugins",
    "values": "plugins",
    "encoders": "plugins",
    "walsender": "walsender",
    "apply": "apply",
}

#: Loaded by name, not by an import: programs, entry points, migrations.
ENTRY_POINTS = re.compile(
    r"cli(\.__main__)?|serve|slot_manager\.openapi|demo\.__main__|lake\.jars|subscriber\.run_start|store\.migrations\.(env|versions\.\w+)|_kernels"
)

#: Modules that the service itself does not import, and what they are for.
UNUSED: dict[str, str] = {}


@dataclass(frozen=True)
class Module:
    name: str
    path: Path

    @property
    def layer(self) -> str:
        """The layer it belongs to; of a kernel, the one it serves."""
        first, _, rest = self.name.partition(".")
        if first == "_kernels":
            return KERNEL_ROOMS.get(rest.split(".")[0], "")
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


def _check_imports(module: Module) -> None:
    """Wherever one stands: within a function and under TYPE_CHECKING, too."""
    own = module.layer
    assert own in RANK, f"{module.name} belongs to no layer: name it in LAYERS or KERNEL_ROOMS"
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


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.path.relative_to(SOURCE)))
def test_imports_point_downward(module: Module) -> None:
    if module.name not in {"", "_kernels"}:
        _check_imports(module)


@pytest.mark.parametrize(
    ("name", "imported"),
    [
        ("delivery.stream", "sessions.session"),
        ("delivery.slots", "sessions.model"),
        ("delivery.slots", "service.model"),
        ("delivery.reader", "wal.reader"),
        ("delivery.reader", "txlog.writer"),
        ("sessions.session", "delivery.slots"),
        ("sessions.source", "plugins.registry"),
        ("txlog.cursor", "delivery.reader"),
        ("stream.wire", "delivery.model"),
        ("watch.views", "sessions.model"),
    ],
)
def test_rooms_of_the_service_do_not_know_each_other(
    name: str, imported: str, tmp_path: Path
) -> None:
    """Sessions and delivery meet at the log, and whoever stands on the service at what it says."""
    assert {name, imported} <= NAMES
    path = tmp_path / "module.py"
    path.write_text("from spillway.txlog.cursor import TransactionCursor\n")
    if name.startswith(("sessions.", "delivery.")):
        _check_imports(Module(name, path))
    for number, form in enumerate(("{}", "if TYPE_CHECKING:\n    {}", "def f():\n    {}")):
        path = tmp_path / f"module_{number}.py"
        path.write_text(form.format(f"from spillway.{imported} import x"))
        with pytest.raises(AssertionError, match=f"{name} imports {imported}"):
            _check_imports(Module(name, path))


@pytest.mark.parametrize(
    "module",
    [module for module in MODULES if module.name.startswith("lake.")],
    ids=lambda module: module.name,
)
def test_rooms_of_the_lake_know_those_below(module: Module) -> None:
    """Imports for type checkers and within functions count, too: the drawing is about who knows
    whom.
    """
    own = module.name.split(".")[1]
    assert own in LAKE_RANK, f"{module.name} is in no room: name it in LAKE_ROOMS"
    for imported in _imports(module.path):
        if imported.startswith("lake.") and (other := imported.split(".")[1]) != own:
            assert other in LAKE_RANK, f"{module.name} imports {imported}, which is in no room"
            assert LAKE_RANK[other] < LAKE_RANK[own], (
                f"{module.name} imports {imported}: that is not below it"
            )


def test_rooms_of_the_kernels_know_those_below() -> None:
    rooms = list(KERNEL_ROOMS)
    for module in MODULES:
        if module.name.startswith("_kernels."):
            own = rooms.index(module.name.split(".")[1])
            for imported in _imports(module.path):
                if imported.startswith("_kernels.") and (other := imported.split(".")[1]):
                    assert rooms.index(other) <= own, f"{module.name} imports {imported}"


def test_table_formats_do_not_know_each_other() -> None:
    formats = ("delta", "iceberg", "parquet")
    for module in MODULES:
        own = module.name.removeprefix("lake.tables.").split(".")[0]
        if module.name.startswith("lake.tables.") and own in formats:
            others = {f"lake.tables.{other}" for other in formats if other != own}
            known = {".".join(name.split(".")[:3]) for name in _imports(module.path)}
            assert not known & others, f"{module.name} knows {known & others}"


def test_consumers_need_nothing_of_a_lake() -> None:
    for module in MODULES:
        if module.layer == "consumer":
            nodes = list(ast.walk(ast.parse(module.path.read_text())))
            names = [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]
            names += [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
            needed = {name.split(".")[0] for name in names} & LAKE_PACKAGES
            assert not needed, f"{module.name} imports {needed}"


@pytest.mark.parametrize(
    ("heading", "layers"),
    [("## Who may import whom", LAYERS), ("## The rooms of the lake", LAKE_ROOMS)],
)
def test_the_layers_are_those_of_the_drawing(
    heading: str, layers: tuple[tuple[str, ...], ...]
) -> None:
    text = (PROJECT / "docs/explanation/architecture.md").read_text()
    drawing = text.split(heading)[1].split("```")[1]
    drawn = [frozenset(line.split(" · ")) for line in drawing.strip().splitlines()]
    assert drawn == [frozenset(group) for group in reversed(layers)]


def test_the_rooms_of_the_kernels_are_those_of_the_drawing() -> None:
    text = (PROJECT / "docs/explanation/architecture.md").read_text()
    section = text.split("## Compiled kernels")[1].split("\n## ")[0]
    drawn = re.findall(r"^\| `(\w+)/` \| `(\w+)` \|", section, re.MULTILINE)
    assert drawn == list(KERNEL_ROOMS.items())
    folders = {path.name for path in (SOURCE / "_kernels").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == set(KERNEL_ROOMS)


def test_the_rooms_of_the_service_have_what_is_said_of_them() -> None:
    text = (PROJECT / "docs/explanation/architecture.md").read_text()
    section = text.split("## The rooms of the service")[1].split("\n## ")[0]
    rooms = re.findall(r"^\| `(\w+)/` \| (.*)$", section, re.MULTILINE)
    assert [room for room, _ in rooms] == ["sessions", "delivery", "service"]
    for room, line in rooms:
        modules = {path.stem for path in (SOURCE / room).glob("*.py")} - {"__init__"}
        assert set(re.findall(r"`(\w+)`", line)) <= modules, room


def _cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that need each other, each as one way round; [] when there are none.

    A module counts as needing another wherever it names it: within a function and under
    TYPE_CHECKING, too.
    """
    done: set[str] = set()
    found = []

    def visit(name: str, trail: tuple[str, ...]) -> None:
        for imported in sorted(graph.get(name, ())):
            if imported in trail or imported == name:
                way = (*trail, name)
                found.append([*way[way.index(imported) :], imported])
            elif imported not in done:
                visit(imported, (*trail, name))
        done.add(name)

    for name in sorted(graph):
        if name not in done:
            visit(name, ())
    return found


def test_no_import_cycles() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module in MODULES:
        # A kernel's .pxd and .pyx are one module.
        graph[module.name] |= _imports(module.path) - {module.name}
    assert [" → ".join(way) for way in _cycles(graph)] == []


def test_cycles_are_found_wherever_an_import_stands(tmp_path: Path) -> None:
    modules = {
        "errors": "",
        "pg.lsn": "from spillway.errors import SpillwayError",
        "pg.rmgr": "if TYPE_CHECKING:\n    from spillway.pg.identifier import quote",
        "pg.identifier": "def f():\n    from spillway.pg import keywords\n",
        "pg.keywords": "import spillway.pg.rmgr",
    }
    graph = {}
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
        graph[name] = set(_imports(tmp_path / f"{name}.py"))
    assert _cycles(graph) == [["pg.identifier", "pg.keywords", "pg.rmgr", "pg.identifier"]]
    graph["pg.keywords"].clear()
    assert _cycles(graph) == []


def test_no_dead_modules() -> None:
    imported = set().union(*(_imports(module.path) for module in MODULES))
    texts = [path.read_text() for path in (PROJECT / "pyproject.toml", *SOURCE.rglob("*.py"))]
    # Modules that are imported when their name comes up (plugins, programs) are named in full
    # somewhere.
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
    paths = sorted((SOURCE / "_kernels").rglob("*.pyx"))
    assert paths
    for path in paths:
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        assert importlib.import_module(f"spillway.{name}")


# What is durable.

#: Calls that make bytes or names durable, or move a file over another one, by what they are called
#: on.
_OF_OS = {"fsync", "fdatasync", "sync", "replace", "rename", "renames", "O_DIRECTORY"}
#: Modules that sync a file, and why :mod:`spillway.storage.durable_files` can't do it for them.
#: None may rename.
_SYNCS_ITSELF = {
    "receiver/wal_": (
        "O_DIRECTORY|fsync: the directory is open for its lock; new segments' names are synced "
        "with what is in them"
    ),
    "receiver/segment_file.py": (
        "fdatasync: a segment of WAL stays open while it is filled: the receiver's hot path"
    ),
    "receiver/store_state.py": "fsync|fdatasync: two pages of one open file, written in turn",
    "txlog/writer.py": "fsync: a segment of the log stays open while it is filled",
    "_kernels/reorder/carry.pyx": "fdatasync: spill files stay open, and C knows their descriptors",
}


def _durable_calls(path: Path) -> set[str]:
    """What in a module is storage/'s business."""
    text = path.read_text()
    if path.suffix != ".py":
        return set(re.findall(rf"\bos\.({'|'.join(sorted(_OF_OS))})\b", text))
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "os" and node.attr in _OF_OS:
                found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            found.update(alias.name for alias in node.names if alias.name in _OF_OS)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # Path.rename(target) and Path.replace(target); what str, datetime and tables call so
            # has other arguments.
            positional = len(node.args) == 1 and not node.keywords
            of_os = isinstance(node.func.value, ast.Name) and node.func.value.id == "os"
            if node.func.attr in {"rename", "replace"} and positional and not of_os:
                found.add(node.func.attr)
    return found


def test_files_become_durable_in_one_room() -> None:
    """See spillway.storage.durable_files: six copies of a step are six places to forget one."""
    used = set()
    for path in sorted((*SOURCE.rglob("*.py"), *SOURCE.rglob("*.pyx"))):
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith("storage/"):
            continue
        allowed: set[str] = set()
        for prefix, why in _SYNCS_ITSELF.items():
            if name.startswith(prefix):
                allowed = set(why.partition(":")[0].split("|"))
                used.add(prefix)
        found = _durable_calls(path)
        assert found <= allowed, (
            f"{name} uses {sorted(found - allowed)}: spillway.storage.durable_files does that"
        )
    assert used == set(_SYNCS_ITSELF), f"nobody is {set(_SYNCS_ITSELF) - used}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import os\nos.fsync(3)", {"fsync"}),
        ("from os import fdatasync", {"fdatasync"}),
        ("os.replace('a', 'b')", {"replace"}),
        ("os.rename('a', 'b')", {"rename"}),
        ("fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)", {"O_DIRECTORY"}),
        ("beside.replace(path)", {"replace"}),
        ("(folder / 'a').rename(folder / 'b')", {"rename"}),
        ("text.replace('a', 'b'); now.replace(tzinfo=None); replace(state, lsn=1)", set()),
    ],
)
def test_what_counts_as_making_durable(tmp_path: Path, text: str, found: set[str]) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    assert _durable_calls(path) == found


# The change format: C structs against the offsets in its Python description.

C_SIZES = {"uint8_t": 1, "uint16_t": 2, "uint32_t": 4, "uint64_t": 8}


def _structs() -> dict[str, list[tuple[int, int, str]]]:
    """(offset, size, field) of every packed struct in changes.pxd."""
    structs: dict[str, list[tuple[int, int, str]]] = {}
    text = (SOURCE / "_kernels" / "reorder" / "changes.pxd").read_text()
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

    text = (SOURCE / "_kernels" / "reorder" / "changes.pxd").read_text()
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
    """Outside packages a test module's name is its file's: a second one fails when all are
    collected, and only then.
    """
    tests = Path(__file__).parents[1]
    names = [
        path.name for path in tests.rglob("test_*.py") if not (path.parent / "__init__.py").exists()
    ]
    assert sorted(set(names)) == sorted(names)


_WAITING: Final = frozenset(
    {"get", "post", "put", "patch", "delete", "request", "stream", "Client", "AsyncClient"}
)


def _impatient(text: str) -> list[int]:
    """Return the lines of a test that ask over HTTP and leave it to httpx how long they wait."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "httpx"
        and node.func.attr in _WAITING
        and not {one.arg for one in node.keywords} & {"timeout", "transport"}
    ]


def test_tests_say_how_long_they_wait() -> None:
    """httpx gives up after five seconds, which a service on a busy machine may take."""
    tests = Path(__file__).parents[1]
    lines = {
        str(path.relative_to(tests)): found
        for path in tests.rglob("*.py")
        if (found := _impatient(path.read_text()))
    }
    assert not lines
    assert _impatient("httpx.get(url)\nhttpx.Client(timeout=9)\nhttpx.Client()") == [1, 3]


def _tests_imported(text: str) -> list[str]:
    """Return what a module of the harness imports of the tests that it serves."""
    tests = Path(__file__).parents[1]
    own = {path.stem for path in tests.iterdir()} - {"harness"}
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return [name for name in found if name.split(".")[0] in own]


def test_the_harness_imports_no_test() -> None:
    """What tests share stands below them: who changes a test need not think of other tests."""
    harness = Path(__file__).parents[1] / "harness"
    imported = {path.name: _tests_imported(path.read_text()) for path in harness.rglob("*.py")}
    assert {name: found for name, found in imported.items() if found} == {}
    assert _tests_imported("if x:\n    from oracle.test_scenarios import run_step") == [
        "oracle.test_scenarios"
    ]
    assert _tests_imported("import conftest, harness.oracle") == ["conftest"]


# How programs are started.

#: What takes the words of Popen.
_STARTS = {
    "Popen", "run", "call", "check_call", "check_output",
    "create_subprocess_exec", "create_subprocess_shell",
}  # fmt: skip
#: Popen's words for what it can do only in a forked child.
_FORKS_FOR = {"user", "group", "extra_groups"}
_FORKS = {
    ("os", "fork"), ("os", "forkpty"), ("pty", "fork"), ("pty", "spawn"),
    ("multiprocessing", "Pool"), ("multiprocessing", "Process"), ("futures", "ProcessPoolExecutor"),
}  # fmt: skip


def _forks(text: str) -> set[str]:
    """What in a module forks the process that it runs in."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            room = (node.module or "").split(".")[-1]
            found.update(alias.name for alias in node.names if (room, alias.name) in _FORKS)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in _FORKS:
                found.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg == "preexec_fn":
            found.add(node.arg)
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in _STARTS:
                found.update({word.arg or "" for word in node.keywords} & _FORKS_FOR)
            elif called == "get_context" and [ast.unparse(a) for a in node.args] != ["'spawn'"]:
                found.add(called)
    return found


def test_nobody_forks() -> None:
    """A forked child runs on in a copy of a process whose other threads it does not have.

    gRPC's handlers of forks run there, and while its threads are busy they end one child in six by
    SIGSEGV or SIGABRT before it has become its program: to whoever waits for that, the program did
    it. Popen without these words does not fork (harness.forks counts). What must be done in the
    child, a small program does that then becomes the other: `sh -c 'ulimit …; exec "$@"'`.

    The harness's two nurseries may: they have one thread, and have opened no channel of gRPC's.
    """
    rooms = ("services", "client", "bench", "scripts", "terraform", "tests")
    paths = [path for room in rooms for path in (PROJECT / room).rglob("*.py")]
    found = {
        path.relative_to(PROJECT).as_posix(): forks
        for path in paths
        if ".venv" not in path.parts and (forks := _forks(path.read_text()))
    }
    nurseries = ("driver_nursery", "python_nursery")
    assert found == {f"tests/harness/{name}.py": {"fork"} for name in nurseries}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Popen(['true'], preexec_fn=f)", {"preexec_fn"}),
        ("words = dict(preexec_fn=f)", {"preexec_fn"}),
        ("subprocess.run(['true'], user=1, extra_groups=[])", {"user", "extra_groups"}),
        ("await asyncio.create_subprocess_exec('true', group=1)", {"group"}),
        ("import os\nif os.fork() == 0: ...", {"fork"}),
        ("from pty import spawn", {"spawn"}),
        ("multiprocessing.Process(target=f).start()", {"Process"}),
        ("from concurrent.futures import ProcessPoolExecutor", {"ProcessPoolExecutor"}),
        ("multiprocessing.get_context()", {"get_context"}),
        ("multiprocessing.get_context('spawn')", set()),
        ("connect(user='u'); Popen(['true'], start_new_session=True, umask=7)", set()),
    ],
)
def test_what_counts_as_a_fork(text: str, found: set[str]) -> None:
    assert _forks(text) == found
