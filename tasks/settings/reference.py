"""Every key of a settings file with its default, what it may be, and what it means: read from the models themselves.

What a key means is the comment behind its field. Only errors and `packrank settings` ask for it.
"""

import ast
import io
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from tasks.schedule.strategies import STRATEGIES
from tasks.settings.engine_keys import CAPACITY, COMPUTED
from tasks.settings.models import Settings
from tasks.settings.strategy_section import OWN_TABLE

SOURCES = (Path(__file__).parent, Path(__file__).parent.parent / "schedule" / "strategies")
RENAMED = {("store", "keep_answer_nights"): "[store.keep_outcomes] nights"}  # the nearest name would delete nights
RESOLVED = "[strategy]"  # a field of a strategy's record that is no key of its table

Schema = Mapping[str, Any]
KeyPath = tuple[str, ...]  # of tables, the key last; a table's own path is one too


@dataclass(frozen=True, slots=True)
class SettingKey:
    """A key, or a table of keys."""

    path: KeyPath
    allowed: str  # in words
    default: object
    meaning: str
    is_table: bool
    is_required: bool
    may_be_left_out: bool  # none is a value of its own: what the settings file has may be taken back


@cache
def setting_keys() -> Mapping[KeyPath, SettingKey]:
    """All tables and keys by their paths, in the order of the models."""
    schema = Settings.model_json_schema()
    comments = {name: found for folder in SOURCES for path in folder.glob("*.py") for name, found in _comments(path)}
    return {key.path: key for key in _keys(schema, (), schema["$defs"], comments)}


def keys_of(section: KeyPath) -> list[SettingKey]:
    """The keys of one table, tables inside it aside; of () those above the first table."""
    return [key for path, key in setting_keys().items() if path[:-1] == section and not key.is_table]


def setting_tables() -> list[SettingKey]:
    """All tables, in the order of the models."""
    return [key for key in setting_keys().values() if key.is_table]


def table_name(path: KeyPath) -> str:
    """A table as TOML has it.

    >>> table_name(("strategy", "cascade"))
    '[strategy.cascade]'
    """
    return f"[{'.'.join(path)}]"


def unknown_key_hint(path: KeyPath) -> str:
    """What a key or table that is not there may have been meant to be: the nearest, else all that there are."""
    if path in RENAMED:
        return f"It is {RENAMED[path]} now."
    *section, name = path
    known = [key for key in setting_keys() if key[:-1] == tuple(section)]
    names = [key[-1] for key in known]
    if near := get_close_matches(name, names, n=2, cutoff=0.7):
        return f"Is it {' or '.join(near)}?"
    elsewhere = [table_name(key[:-1]) for key in setting_keys() if len(key) > 1 and key[-1] == name]
    if elsewhere:
        return f"{' and '.join(elsewhere)} {'has' if len(elsewhere) == 1 else 'have'} such a key."
    return f"{table_name(tuple(section)) if section else 'A settings file'} has {', '.join(names)}."


def engine_key_hint(key: str) -> str:
    """What an `[engine]` key that vLLM does not know may have been meant to be."""
    known = sorted(COMPUTED | CAPACITY | {each.path[-1] for each in keys_of(("engine",))})
    near = get_close_matches(key, known, n=1)
    return f"Is it {near[0]}?" if near else "docs/settings.md names all that it knows."


def _keys(
    schema: Schema, path: KeyPath, shared: Schema, comments: Mapping[str, Mapping[str, str]]
) -> Iterator[SettingKey]:
    """The keys of a table, each followed by those of the table that it is."""
    told = comments.get(schema["title"], {})
    for name, field in schema["properties"].items():
        if name == OWN_TABLE:
            for own, kind in STRATEGIES.items():
                table = shared[kind.__name__]
                if set(table["properties"]) - {RESOLVED, "name"}:
                    yield from _table((*path, own), table, shared, comments, may_be_left_out=True)
            continue
        if name == RESOLVED or (name == "name" and schema["title"] in {kind.__name__ for kind in STRATEGIES.values()}):
            continue
        parts = field.get("anyOf", [field])
        given = [part for part in parts if part.get("type") != "null"]
        if "$ref" in given[0]:
            table = shared[given[0]["$ref"].rpartition("/")[2]]
            yield from _table((*path, name), table, shared, comments, may_be_left_out=len(given) < len(parts))
            continue
        yield SettingKey(
            (*path, name),
            allowed_text({"anyOf": given} if given[1:] else {**field, **given[0]}),
            field.get("default"),
            told.get(name, ""),
            is_table=False,
            is_required=name in schema.get("required", ()),
            may_be_left_out=len(given) < len(parts),
        )


def _table(
    path: KeyPath, schema: Schema, shared: Schema, comments: Mapping[str, Mapping[str, str]], *, may_be_left_out: bool
) -> Iterator[SettingKey]:
    meaning = schema.get("description", "").partition("\n")[0]
    yield SettingKey(path, "a table", None, meaning, True, False, may_be_left_out)
    yield from _keys(schema, path, shared, comments)


def allowed_text(schema: Schema) -> str:
    """What a JSON schema lets through, in words.

    >>> allowed_text({"anyOf": [{"type": "integer", "minimum": 2}, {"const": "auto"}]})
    "a whole number of 2 or more, or 'auto'"
    """
    if len(schema.get("anyOf", ())) > 1 and "type" not in schema:
        return ", or ".join(map(allowed_text, schema["anyOf"]))
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if values:
        shown = [repr(value) for value in values]
        return " or ".join([", ".join(shown[:-1]), shown[-1]] if shown[1:] else shown)
    kind = schema["type"]
    if kind == "object":
        return "a table of texts" if schema["additionalProperties"].get("type") == "string" else "a table of values"
    if kind in ("integer", "number"):
        return f"a {'whole ' if kind == 'integer' else ''}number{_bounds(schema)}"
    if kind == "string":
        like = " or ".join(map(repr, schema.get("examples", ())))
        what = "a date, YYYY-MM-DD" if schema.get("format") == "date" else "a text"
        return f"{what} such as {like}" if like else what
    if kind == "array":
        number, inner = "", schema.get("items")
        if inner is None:
            number, inner = f"{len(schema['prefixItems'])} ", schema["prefixItems"][0]
        return f"a list of {number}{_plural(allowed_text(inner))}"
    return "true or false"


def _plural(words: str) -> str:
    """What several of these are called, in a list: 'a text' becomes 'texts'."""
    for one, many in (("a text", "texts"), ("a whole number", "whole numbers"), ("a number", "numbers")):
        if words.startswith(one):
            return f"{many}{words.removeprefix(one)}"
    return words


def _bounds(schema: Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if least is not None and most is not None:
        return f" from {least:g} to {most:g}"
    upper = "" if most is None and below is None else f" at most {most:g}" if most is not None else f" below {below:g}"
    lower = f" of {least:g} or more" if least is not None else "" if above is None else f" above {above:g}"
    return f"{lower} and{upper}" if lower and upper else lower or upper


def _comments(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each class of a file with the comments behind its fields."""
    text = path.read_text(encoding="utf-8")
    by_line = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            yield (
                node.name,
                {
                    field.target.id: " ".join(
                        by_line[line] for line in range(field.lineno, (field.end_lineno or 0) + 1) if line in by_line
                    )
                    for field in node.body
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                },
            )
