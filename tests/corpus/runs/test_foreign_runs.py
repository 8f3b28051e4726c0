"""A run that comes from someone else writes, reads and runs nothing beside itself."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import run_examples as examples
import torch
from huggingface_hub import constants
from run_records import edit_record, table_file

import normlens
from normlens import cli
from normlens.corpus import Run, resume, run
from normlens.corpus.data import readers
from normlens.corpus.runs.folder import RunError
from normlens.corpus.runs.ledger import DATA_INDEX
from normlens.errors import InputError, NormLensError
from normlens.loading.hub import Origin

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")

#: Leaves a mark when it is imported.
TRAP = """
import pathlib
pathlib.Path(__file__).with_name("sprung").touch()
from normlens.corpus.measures import measure

@measure(schema={"length": int})
def length(maps):
    return {"length": [len(maps)]}

def related(item):
    return [[False] * len(item)] * len(item)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("foreign")
    examples.tiny_checkpoint(folder / "model")
    examples.corpus_file(folder / "corpus.txt", 6)
    return folder


@pytest.fixture(scope="module")
def lens(folder: Path) -> Any:
    return normlens.load(folder / "model", device="cpu")


@pytest.fixture(scope="module")
def whole(folder: Path, lens: Any) -> Path:
    run(lens, folder / "corpus.txt", folder / "run", block_size=4, file_size=0)
    return folder / "run"


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module on the path; the file that is there once it was imported."""
    (tmp_path / "trap_module.py").write_text(TRAP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trap_module", raising=False)
    return tmp_path / "sprung"


def look(out: Path) -> None:
    """Everything that reads a run, whatever comes of it."""
    for query in ("SELECT count(*) FROM norms_dimensions", "SELECT * FROM amplification_sample"):
        with contextlib.suppress(NormLensError):
            Run.open(out).sql(query)
    for name in ("norms_dimensions", "mixing"):
        with contextlib.suppress(NormLensError):
            Run.open(out).table(name)
    with contextlib.suppress(NormLensError):
        Run.open(out).status()


# Writing ------------------------------------------------------------------------------------------


def test_sql_in_a_manifest_is_not_run(copy: Path, tmp_path: Path) -> None:
    evil = tmp_path / "evil.csv"
    sql = f"SELECT * FROM parts); COPY (SELECT 1) TO '{evil}'; SELECT * FROM (SELECT 1"
    examples.forge(copy, lambda found: found["tables"]["norms_dimensions"].update(sql=sql))
    look(copy)
    assert not evil.exists()


def test_numbers_of_a_manifest_are_not_sql(copy: Path, tmp_path: Path) -> None:
    evil = tmp_path / "evil.csv"
    text = f"1 END); COPY (SELECT 1) TO '{evil}'; --"
    options = {"keep": text, "keep_other": text}
    examples.forge(
        copy, lambda found: found["measures"]["amplification"]["options"].update(options)
    )
    look(copy)
    assert not evil.exists()
    with pytest.raises(NormLensError, match="measure that cannot be made"):
        Run.open(copy).table("amplification_sample")


@pytest.mark.parametrize("name", ["x\" AS SELECT 1; COPY (SELECT 1) TO 'EVIL'; --", "../outside"])
def test_names_of_tables_are_names(copy: Path, tmp_path: Path, name: str) -> None:
    evil = tmp_path / "evil.csv"
    name = name.replace("EVIL", str(evil))
    examples.forge(
        copy, lambda found: found["tables"].update({name: found["tables"].pop("failures")})
    )
    look(copy)
    assert not evil.exists()
    with pytest.raises(NormLensError, match="cannot name a table"):
        Run.open(copy)


@pytest.mark.parametrize(
    "query",
    [
        "COPY (SELECT 1) TO 'FILE'",
        "COPY (SELECT 1) TO 'BLOCK' (FORMAT parquet, USE_TMP_FILE false)",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO 'BLOCK' (FORMAT parquet, USE_TMP_FILE false)",
        "COPY (PIVOT mixing ON scope USING count(*)) TO 'BLOCK' (USE_TMP_FILE false)",
        "PREPARE p AS COPY (SELECT 1) TO 'BLOCK' (USE_TMP_FILE false); EXECUTE p",
        "SELECT 1) TO 'BLOCK' (USE_TMP_FILE false); COPY (SELECT 2",
        "EXPORT DATABASE 'FILE'",
        "ATTACH 'FILE'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
    ],
)
def test_a_query_writes_only_where_it_is_told_to(copy: Path, tmp_path: Path, query: str) -> None:
    block, file = table_file(copy, "mixing"), tmp_path / "file"
    before = block.read_bytes()
    query = query.replace("BLOCK", str(block)).replace("FILE", str(file))
    with pytest.raises(InputError) as caught:
        Run.open(copy).sql(query)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError):
        Run.open(copy).export(query, tmp_path / "answer.csv")
    assert block.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


def test_a_lock_that_is_a_link_empties_no_file(copy: Path, tmp_path: Path, lens: Any) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    (copy / "lock").unlink(missing_ok=True)
    (copy / "lock").symlink_to(precious)
    with pytest.raises(NormLensError, match="lock"):
        resume(copy, model=lens)
    assert precious.read_text() == "mine"


def test_links_that_lead_out_are_not_followed(copy: Path, tmp_path: Path, lens: Any) -> None:
    outside = Path(shutil.move(copy / "tables" / "mixing", tmp_path / "outside"))
    (copy / "tables" / "mixing").symlink_to(outside)
    with pytest.raises(NormLensError, match="is missing"):
        Run.open(copy).table("mixing")
    [file, *_] = outside.iterdir()
    file.write_bytes(b"mine")
    with pytest.raises(NormLensError, match="leads out of the run's folder"):
        resume(copy, model=lens)
    assert file.read_bytes() == b"mine"


# Reading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_text('FILE')",
        "SELECT * FROM 'FILE'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM read_csv('FILE'), mixing",
    ],
)
def test_a_query_reads_only_the_run(whole: Path, tmp_path: Path, query: str) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("a\n1\n")
    with pytest.raises(InputError):
        Run.open(whole).sql(query.replace("FILE", str(file)))


def test_queries_that_ask_are_allowed(whole: Path) -> None:
    done = Run.open(whole)
    assert set(done.sql("SHOW TABLES")["name"]) == set(done.tables)
    for query in (
        "DESCRIBE mixing",
        "SUMMARIZE mixing",
        "EXPLAIN SELECT * FROM mixing",
        "FROM Mixing SELECT max(ratio)",
        "PIVOT mixing ON scope USING avg(ratio) GROUP BY layer",
        "WITH a AS (SELECT * FROM mixing) SELECT * FROM a JOIN norms USING (layer) LIMIT 3",
        "SELECT * FROM query_table('mixing')",
        "SELECT * FROM query('SELECT layer FROM mixing'), (SELECT 1 FROM norms)",
        "CREATE TEMP TABLE a AS SELECT * FROM mixing; SELECT * FROM a",
        "SELECT * FROM mixing -- all of it",
    ):
        assert len(done.sql(query)), query


def test_a_folder_named_like_a_value_adds_no_column(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "it's [a] rate=0.1" / "layer=7"))
    found, expected = Run.open(copy), Run.open(whole)
    examples.assert_same_frames(found.table("mixing"), expected.table("mixing"), "mixing")
    columns = found.sql("SELECT * FROM mixing").columns
    assert list(columns) == list(expected.manifest.tables["mixing"]["columns"])


SECRETS = {
    "secret.txt": b"my password",
    "secret.jsonl": b'{"password": ',
    "secret.csv": b'password\n"my password',
    "secret.parquet": b"my password",
    "parallel:secret": b"my password",
}


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("has_index", [True, False])
def test_data_that_a_run_names_is_compared_before_it_is_read(
    copy: Path,
    tmp_path: Path,
    lens: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    has_index: bool,
) -> None:
    prefix, colon, file = name.rpartition(":")
    (tmp_path / file).write_bytes(SECRETS[name])
    spec = f"{prefix}{colon}{tmp_path / file}"
    examples.forge(copy, lambda found: found["options"].update(data=spec))
    if not has_index:
        (copy / DATA_INDEX).unlink()
    parsed: list[Any] = []
    spies = {kind: lambda *given: parsed.append(given) or iter(()) for kind in readers.READERS}
    monkeypatch.setattr(readers, "READERS", spies)
    with pytest.raises(RunError, match="the contents of the data: then") as caught:
        resume(copy, model=lens)
    assert "\n" not in str(caught.value)
    assert "password" not in str(caught.value)
    assert parsed == []


@pytest.mark.parametrize("name", ["https://example.org/x.jsonl", "s3://bucket/x.jsonl", "\0"])
def test_no_data_is_fetched(copy: Path, lens: Any, name: str) -> None:
    examples.forge(copy, lambda found: found["options"].update(data=name))
    with pytest.raises(InputError, match="there is no data at"):
        resume(copy, model=lens)


def test_gold_links_that_a_run_names_are_compared_before_they_are_read(
    copy: Path, tmp_path: Path, lens: Any
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("password")

    def name_gold(found: dict[str, Any], path: str) -> None:
        found["options"].update(measures=["alignment"], settings={"alignment": {"gold": path}})
        found["measures"] = {"alignment": {"options": {"gold": "sha256:0"}, "source": None}}

    for path in (str(secret), str(tmp_path), str(tmp_path / "none"), "a" * 5000, "\0"):
        examples.forge(copy, partial(name_gold, path=path))
        with pytest.raises(RunError, match=r"is not the file \(gold\)") as caught:
            resume(copy, model=lens)
        assert "password" not in str(caught.value)


@pytest.mark.parametrize("name", ["someone/model", "bert-base-uncased", "no model"])
def test_a_model_is_fetched_only_if_the_user_names_it(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))

    def find(*_: Any) -> Any:
        raise ConnectionError

    monkeypatch.setattr(Origin, "find", find)
    examples.forge(copy, lambda told: told["options"].update(model=name))
    with pytest.raises(InputError, match="only if you name it: add --model") as caught:
        resume(copy)
    assert shlex.split(str(caught.value).partition("add ")[2]) == ["--model", name]
    with pytest.raises(ConnectionError):
        resume(copy, model=name)


def test_a_model_in_the_cache_need_not_be_named(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--someone--model"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("a" * 40)
    (cached / "snapshots" / ("a" * 40)).mkdir(parents=True)
    (cached / "snapshots" / ("a" * 40) / "config.json").write_text("{}")

    def find(*_: Any) -> Any:
        raise ConnectionError

    monkeypatch.setattr(Origin, "find", find)
    examples.forge(copy, lambda told: told["options"].update(model="someone/model"))
    with pytest.raises(ConnectionError):
        resume(copy)


def test_code_of_a_model_is_not_run_because_a_run_says_so(
    folder: Path, copy: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(folder / "model", tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    config["model_type"] = "trapped"
    config["auto_map"] = {"AutoConfig": "trap.Trap", "AutoModel": "trap.Trap"}
    (model / "config.json").write_text(json.dumps(config))
    sprung = tmp_path / "sprung"
    (model / "trap.py").write_text(f"import pathlib; pathlib.Path({str(sprung)!r}).touch()")

    def edit(found: dict[str, Any]) -> None:
        found["options"]["model"] = str(model)
        found["execution"]["trust_remote_code"] = True

    examples.forge(copy, edit)
    with pytest.raises(NormLensError):
        resume(copy)
    assert not sprung.exists()
    with pytest.raises(NormLensError):
        resume(copy, trust_remote_code=True)
    assert sprung.exists()  # the trap is one


# Tables that are none, with every checksum right --------------------------------------------------


def put(out: Path, table: str, change: Callable[[bytes], bytes], blocks: tuple[int, ...]) -> None:
    """Change files of a table as a stranger would: their records fit what they hold afterwards."""
    for block in blocks:
        path = table_file(out, table, block)
        contents = change(path.read_bytes())
        path.write_bytes(contents)

        def edit(told: dict[str, Any], contents: bytes = contents) -> None:
            told["tables"][table][2:] = [len(contents), hashlib.sha256(contents).hexdigest()]

        edit_record(out, block + 1, edit)


def parquet(change: Callable[[pa.Table], pa.Table]) -> Callable[[bytes], bytes]:
    def changed(contents: bytes) -> bytes:
        sink = io.BytesIO()
        pq.write_table(change(pq.read_table(io.BytesIO(contents))), sink)
        return sink.getvalue()

    return changed


def every_column(value: object, kind: pa.DataType | None = None) -> Callable[[bytes], bytes]:
    """Every column with this value in all of its rows."""
    return parquet(
        lambda table: pa.table(
            {name: pa.array([value] * len(table), kind) for name in table.schema.names}
        )
    )


CRAFTED: dict[str, Callable[[bytes], bytes]] = {
    "not Parquet": lambda _: b"nothing",
    "empty": lambda _: b"",
    "magic bytes alone": lambda _: b"PAR1" + bytes(40) + b"PAR1",
    "cut": lambda contents: contents[: len(contents) // 2],
    "pages": lambda contents: contents[:60] + bytes(30) + contents[90:],
    "footer": lambda contents: contents[:-60] + bytes(20) + contents[-40:],
    "no columns": parquet(lambda _: pa.table({})),
    "another column": parquet(lambda _: pa.table({"x": [1]})),
    "a column less": parquet(lambda table: table.drop_columns(table.schema.names[:1])),
    "a column more": parquet(lambda table: table.append_column("x", pa.nulls(len(table)))),
    "nulls": every_column(None),
    "texts": every_column("x"),
    "bytes": every_column(b"\xff\xfe"),
    "lists": every_column([1, 2]),
    "objects": every_column({"a": {"b": [1]}}),
    "labels in lists": every_column(["a"], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    "large": every_column((1 << 63) - 1),
    "negative": every_column(-(1 << 63)),
    "times": every_column(1 << 62, pa.timestamp("us")),
    "not finite": every_column(math.inf),
}
ASKED: dict[str, Callable[[Path, str], object]] = {
    "table": lambda out, table: Run.open(out).table(table),
    "sql": lambda out, table: Run.open(out).sql(f"SELECT * FROM {table}"),
    "export": lambda out, table: Run.open(out).export(f"FROM {table}", out.parent / "answer.csv"),
}


def assert_one_line(out: Path, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything that reads tables gives an answer or one line."""
    for ask in ASKED.values():
        try:
            ask(out, table)
        except NormLensError as error:
            assert "\n" not in str(error)  # noqa: PT017
    for command in (["query", str(out), f"FROM {table}"], ["status", str(out)]):
        capsys.readouterr()
        status = cli.main(command)
        assert status in (0, 2)
        if status:
            assert re.fullmatch(r"error: [^\n]+\n", capsys.readouterr().err)


@pytest.mark.parametrize(("table", "blocks"), [("norms_dimensions", (1,)), ("mixing", (0, 1))])
@pytest.mark.parametrize("crafted", CRAFTED)
def test_crafted_files_are_one_line(
    copy: Path, capsys: pytest.CaptureFixture[str], crafted: str, table: str, blocks: tuple[int]
) -> None:
    put(copy, table, CRAFTED[crafted], blocks)
    assert_one_line(copy, table, capsys)


def test_text_that_is_none_in_an_error_of_duckdb(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB quotes names from a file's footer in its messages, whatever bytes they are."""

    def undecodable(*_: Any) -> Any:
        return b"\xe7x".decode()

    monkeypatch.setattr("normlens.corpus.runs.tables.closed_connection", undecodable)
    with pytest.raises(NormLensError, match=r"cannot read .*can't decode"):
        Run.open(copy).table("mixing")


# Running ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trap_module:length", "subprocess:Popen"])
def test_a_measure_is_imported_only_if_the_user_names_it(
    copy: Path, tmp_path: Path, lens: Any, trap: Path, name: str
) -> None:
    def edit(found: dict[str, Any]) -> None:
        found["options"]["measures"] = ["mixing", name]
        found["options"]["settings"] = {"subprocess:Popen": {"args": ["touch", str(trap)]}}
        found["measures"][name] = {"options": {}, "source": {}}

    examples.forge(copy, edit)
    look(copy)
    with pytest.raises(NormLensError, match=f"only if you name it: add --measures mixing,{name}"):
        resume(copy, model=lens)
    with pytest.raises(NormLensError):
        resume(copy, model=lens, measures="mixing,norms")
    assert not trap.exists()


def test_a_relation_is_imported_only_if_the_user_names_it(
    copy: Path, lens: Any, trap: Path
) -> None:
    relations = {"relations": ["trap_module:related"]}

    def edit(found: dict[str, Any]) -> None:
        found["options"]["settings"] = {"amplification": relations}
        found["measures"]["amplification"]["options"] |= relations

    examples.forge(copy, edit)
    look(copy)
    assert len(Run.open(copy).table("amplification_sample"))
    with pytest.raises(NormLensError, match=r"add --set .*trap_module:related"):
        resume(copy, model=lens)
    assert not trap.exists()


#: A measure of a user's own that merges its blocks.
MERGING = """
import pyarrow as pa

class Longest:
    from normlens.corpus.measures import Needs
    name, tables, needs = "longest", {"longest": pa.schema([("tokens", pa.int64())])}, Needs()
    order = {"longest": ("tokens",)}

    def __init__(self, least=0):
        self.options = {"least": least}
        self.sql = {"longest": f"SELECT max(tokens) AS tokens, {int(least)} AS least FROM parts"}

    def rows(self, item):
        return {"longest": pa.table({"tokens": [len(item)]})}

    def combine(self, table, parts):
        return parts
"""


def test_a_users_own_merged_table_needs_its_measure_named(
    folder: Path, tmp_path: Path, lens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_merging.py").write_text(MERGING)
    monkeypatch.syspath_prepend(tmp_path)
    name = "own_merging:Longest"
    options: dict[str, Any] = {"measures": f"mixing,{name}", "settings": {name: {"least": 3}}}
    done = run(lens, folder / "corpus.txt", tmp_path / "run", block_size=2, **options)
    expected = {"tokens": [int(done.table("sequences")["tokens"].max())], "least": [3]}
    assert done.table("longest").to_dict("list") == expected
    assert done.resume(model=lens).status().complete
    found = Run.open(tmp_path / "run")
    assert len(found.table("mixing"))
    with pytest.raises(InputError, match=f"--measures {name}"):
        found.table("longest")
    named = Run.open(tmp_path / "run", measures=name)
    assert named.sql("SELECT * FROM longest").to_dict("list") == expected
    with pytest.raises(InputError, match="did not take the measure 'norms'"):
        Run.open(tmp_path / "run", measures="norms")
