"""Rules of the house that a machine can check: capabilities not names, sizes, layers, what the text may speak of."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.control.base import Controller
from outrider.drafters import config_class, methods
from outrider.drafters.base import Drafter
from outrider.models.base import TargetModel
from outrider.verify import registered
from outrider.verify.base import Verifier

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "outrider"
FILES = sorted(SOURCE.rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION = 400, 60

FLOORS = """
notebook errors files values law price
options
tree
kernels
grammar
sampling
kv
models.pass_plan models.base
models.files
models.identity
models.shipped_heads
models.hf.verified
models.hf.transformers_api
models.loading
models.tensors
models.hf
models.native
models models.backends
prompts
verify
metrics
heads
drafters
config
requests
control
completion
engine
messages inputs
reading
llm
server.wire
server
audit
bench
study
train.bars train.saving
train.data
train.features
train.objectives
train.settings train.products
train.recipes
train.training_data
train.evaluation
train.report
train.loop
train
cli
"""
"""The rooms from the ground up, those of one line side by side: a room imports only itself and what is below it.

A module belongs to the longest name that it begins with.
"""
_OUTSIDE = {"outrider", "outrider.__main__"}
"""The package's face and its command, which name everything and are named by nothing."""

WORDS_OF_OTHERS = {("models/files/gguf_config.py", "none"), ("server/wishes.py", "none")}
"""A file and a word that names a method there only by chance: a kind of rope scaling, a choice of tools."""
OPTION_NAMES = {
    "config.py": {"model", "models", "head"},  # the table of other engines' spellings, and how auto is told its drafter
    "engine/build.py": {"head"},  # an argument of the library, for messages
    "cli/commands.py": {"models"},  # a subcommand
    "cli/models.py": {"model", "models"},  # a kind of repository on the hub, and a result's key
    "models/files/models_folder.py": {"models"},  # a folder's name
    "models/native/model.py": {"head"},  # the kernels' name of the LM head
    "heads/native.py": {"head"},  # likewise
    "train/loop/resume.py": {"head"},
    "train/loop/training.py": {"head"},  # the trained network in a saved state
    # Keys of results: the target's name or facts.
    "audit/report.py": {"model"},
    "audit/run.py": {"model"},
    "bench/kernels.py": {"model"},
    "bench/page.py": {"model"},
    "bench/session.py": {"model"},
    "cli/kernels.py": {"model"},
    "server/desk.py": {"model"},  # the field of OpenAI's requests
    "server/wire/others.py": {"model"},
    "study/plot.py": {"model"},
    "train/report/outcome.py": {"model"},
}
"""Files with words that name a method's option there only by chance, or that are listed for what users may write."""


def name_questions(text: str, names: set[str]) -> Iterator[str]:
    """Places that compare with, match on, or key a dict by one of the names."""
    for node in ast.walk(ast.parse(text)):
        suspects: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            suspects = [node.left, *node.comparators]
            suspects += [
                item for part in suspects if isinstance(part, (ast.Tuple, ast.Set, ast.List)) for item in part.elts
            ]
        elif isinstance(node, ast.Dict):
            suspects = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.MatchValue):
            suspects = [node.value]
        for suspect in suspects:
            value = suspect.value if isinstance(suspect, ast.Constant) else None
            if isinstance(value, str) and value.lower().replace("-", "_") in names:
                yield f"line {suspect.lineno} asks for {value!r}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nobody_asks_a_method_for_its_name(path: Path) -> None:
    here = path.relative_to(SOURCE).as_posix()
    names = {name for name in methods() if name != path.stem and (here, name) not in WORDS_OF_OTHERS}
    names |= {rule.replace("-", "_") for rule in registered()}
    assert list(name_questions(path.read_text(), names)) == []


def test_the_name_check_sees_a_question() -> None:
    text = 'def f(name):\n    if name == "NGRAM":\n        return {"block": 1}\n    return name in ("suffix",)\n'
    found = name_questions(text, {"ngram", "suffix", "block"})
    assert sorted(found) == ["line 2 asks for 'NGRAM'", "line 3 asks for 'block'", "line 4 asks for 'suffix'"]


def words_of(text: str, names: set[str]) -> set[str]:
    """Those of the names that are string constants in a program."""
    constants = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return names.intersection(value.replace("-", "_") for value in constants if isinstance(value, str))


OPTIONS = {name: {item.name for item in dataclasses.fields(config_class(name))} for name in methods()}
"""Names of every method's options."""


def test_nobody_looks_an_option_up_by_its_name() -> None:
    every = set[str]().union(*OPTIONS.values())
    here = {path.relative_to(SOURCE).as_posix(): path for path in FILES}
    own = {f"drafters/{method}.py": names for method, names in OPTIONS.items()}
    found = {name: words_of(path.read_text(), every - own.get(name, set())) for name, path in here.items()}
    assert {name: words for name, words in found.items() if words} == OPTION_NAMES


def test_an_option_looked_up_by_its_name_is_seen() -> None:
    assert words_of('def f(c):\n    "row_cost"\n    return c["num-steps"], c.topk\n', {"num_steps", "topk"}) == {
        "num_steps"
    }


CAPABILITIES = {
    name for each in (TargetModel, Drafter, Verifier, Controller) for name in (*vars(each), *each.__annotations__)
}
"""What the protocols of targets, drafters, rules and controllers declare: nobody needs to ask whether it is there."""


GUESSES = {
    "cli/train.py": {"vocabulary"},  # a flag, which some methods' trainings have
    "train/data/synthesise.py": {"close"},  # of an iterator, which generators have
}
"""Files that ask objects of another kind for a name that one of the protocols declares, too."""


def guesses(text: str, names: set[str]) -> Iterator[str]:
    """Places that ask with ``getattr`` or ``hasattr`` whether an object has one of the names."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            asked = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
            if asked in names:
                yield f"line {node.lineno} asks whether there is {asked!r}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nobody_asks_whether_a_capability_is_there(path: Path) -> None:
    names = CAPABILITIES - GUESSES.get(path.relative_to(SOURCE).as_posix(), set())
    assert list(guesses(path.read_text(), names)) == []


def test_a_guess_is_seen() -> None:
    text = 'def f(target, name):\n    getattr(target, name)\n    return getattr(target, "own_threads", False)\n'
    assert list(guesses(text, CAPABILITIES)) == ["line 3 asks whether there is 'own_threads'"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= LONGEST_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
            assert node.end_lineno - node.lineno + 1 <= LONGEST_FUNCTION, f"{node.name} is too long to read at once"


def module_of(path: Path) -> str:
    return ".".join(("outrider", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def imports_of(path: Path) -> set[str]:
    """Our modules that one names anywhere: inside functions and under ``TYPE_CHECKING`` too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in MODULES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & MODULES.keys()


IMPORTS = {module: imports_of(path) for module, path in MODULES.items()}


def room_of(module: str) -> tuple[str, int]:
    """The room of a module, and its floor."""
    floors = {name: floor for floor, line in enumerate(FLOORS.split("\n")) for name in line.split()}
    name = module.removeprefix("outrider.")
    rooms = [room for room in floors if name == room or name.startswith(f"{room}.")]
    assert rooms, f"{module} is in no room"
    room = max(rooms, key=len)
    return room, floors[room]


def test_imports_go_one_way() -> None:
    upwards = set()
    for module in IMPORTS.keys() - _OUTSIDE:
        room, floor = room_of(module)
        for other in IMPORTS[module] - _OUTSIDE:
            if "." in other.removeprefix("outrider.") or other.removeprefix("outrider.") in FLOORS.split():
                its_room, its_floor = room_of(other)
                if its_room != room and its_floor >= floor:
                    upwards.add((module.removeprefix("outrider."), other.removeprefix("outrider.")))
    assert upwards == set()


def test_a_head_is_known_to_its_formats_and_recipes_alone() -> None:
    """What runs, stores and packs heads finds one by the name of its file, and asks it what it is made of."""
    heads = {
        module for module, path in MODULES.items() if path.parent == SOURCE / "heads" and "HEAD = " in path.read_text()
    }
    assert len(heads) >= 5
    known = {module: others & heads for module, others in IMPORTS.items() if others & heads}
    assert {
        module for module in known if not module.startswith(("outrider.heads.formats.", "outrider.train.recipes."))
    } == set()


def circles(imports: dict[str, set[str]]) -> set[tuple[str, ...]]:
    """Modules that import each other in a circle."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            new = imports.get(ahead.pop(), set()) - seen
            seen |= new
            ahead += new
        return seen

    below = {module: reached(module) for module in imports}
    return {
        tuple(sorted(other for other in below[module] if module in below[other]))
        for module in imports
        if module in below[module]
    }


def test_nothing_imports_itself_in_a_circle() -> None:
    found = circles({module: others - _OUTSIDE for module, others in IMPORTS.items()})
    assert {tuple(name.removeprefix("outrider.") for name in circle) for circle in found} == set()


def test_a_circle_is_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == {("b", "c")}


TWICE: dict[str, str] = {}
"""Class names that may stand for two things, and why."""


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.relative_to(SOURCE).as_posix())
    assert {name: where for name, where in places.items() if len(where) > 1 and name not in TWICE} == {}


def tracked_texts() -> list[Path]:
    kinds = {".py", ".md", ".toml", ".txt", ".json", ".html", ""}
    folders = ("src", "tests", "docs", "scripts", "benchmarks", "results", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]  # a file in a worktree
    return [path for path in files if path.suffix in kinds and "__pycache__" not in path.parts]


def test_the_project_speaks_of_itself_alone() -> None:
    foreign = re.compile(r"/work/|/root/|/home/\w|\.\./shared|/opt/pypi|issue #?\d+ asks|\bhelper-\d")
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in tracked_texts()
        if path != Path(__file__)
        for match in foreign.finditer(path.read_text(errors="ignore"))
    ]
    assert found == []


def undocumented(texts: dict[str, str]) -> Iterator[str]:
    """Public methods without a docstring that neither a base class nor any protocol documents."""
    classes = [
        (file, node)
        for file, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    ]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    documented: dict[str, set[str]] = {}
    for _, node in classes:
        written = {item.name for item in node.body if isinstance(item, functions) and ast.get_docstring(item)}
        for name in {node.name} | ({"Protocol"} & bases_of(node)):
            documented.setdefault(name, set()).update(written)
    for file, node in classes:
        known = set().union(*(documented.get(name, set()) for name in bases_of(node) | {"Protocol"}))
        for item in (each for each in node.body if isinstance(each, functions)):
            public = not any(name.startswith("_") for name in (Path(file).name, node.name, item.name))
            public = public and "overload" not in map(ast.unparse, item.decorator_list)
            if public and not ast.get_docstring(item) and item.name not in known:
                yield f"{file}: {node.name}.{item.name}"


def bases_of(node: ast.ClassDef) -> set[str]:
    return {word for base in node.bases for word in re.findall(r"\w+", ast.unparse(base))}


def test_every_method_has_its_contract_somewhere() -> None:
    """An override inherits the docstring of its protocol or base class; every other public method has its own."""
    assert list(undocumented({str(path.relative_to(SOURCE)): path.read_text() for path in FILES})) == []


def test_the_contract_check_sees_a_gap() -> None:
    text = (
        "class Reader(Protocol):\n    def read(self):\n        'The next line.'\n"
        "class File:\n    def read(self): ...\n    def write(self): ...\n"
        "class Slow(File):\n    def wait(self): ...\n"
    )
    assert list(undocumented({"a.py": text})) == ["a.py: File.write", "a.py: Slow.wait"]
    assert list(undocumented({"_a.py": text})) == []


def pointers(text: str) -> Iterator[str]:
    """Names whose whole docstring is a pointer to another one."""
    owners = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in (each for each in ast.walk(ast.parse(text)) if isinstance(each, owners)):
        if re.fullmatch(r"See [^ ]+\.", ast.get_docstring(node) or ""):
            yield node.name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_docstring_says_more_than_where_to_look(path: Path) -> None:
    assert list(pointers(path.read_text())) == []


def test_the_check_of_docstrings_sees_a_pointer() -> None:
    text = 'def f():\n    """See :class:`A.B`."""\ndef g():\n    """See what the user wants."""\n'
    assert list(pointers(text)) == ["f"]
