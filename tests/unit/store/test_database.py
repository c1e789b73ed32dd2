"""The database: ranges both ways, presence, and what it does when its files are not what they were."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ankusa.store.database import Database
from ankusa.store.errors import StoreDamagedError, StoreError, StoreFormatError, StoreLockedError
from tests.unit.store.images import crash_image, damage_table, flip, wal, write_out


def opened(path: Path) -> Database:
    return Database(path, ("rows", "hooks"), blobs="hooks", churning=("rows",))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    store = opened(tmp_path / "store")
    yield store
    store.close()


def put(database: Database, *keys: bytes, value: bytes = b"v") -> None:
    batch = database.batch()
    for key in keys:
        batch.put(key, value, database.handles["rows"])
    database.write(batch)


def delete(database: Database, *keys: bytes) -> None:
    batch = database.batch()
    for key in keys:
        batch.delete(key, database.handles["rows"])
    database.write(batch)


def letters(text: str) -> list[bytes]:
    return [letter.encode() for letter in text]


@pytest.mark.parametrize(
    ("start", "end", "within"),
    [
        (b"", b"\xff", "abcdefg"),
        (b"b", b"e", "bcd"),
        (b"a\0", b"e\0", "bcde"),
        (b"c", b"c", ""),
        (b"x", b"z", ""),
        (b"", b"a", ""),
        (b"g", b"h", "g"),
    ],
)
def test_a_range_holds_its_start_and_not_its_end_in_both_directions(
    database: Database, start: bytes, end: bytes, within: str
) -> None:
    put(database, *letters("abcdefg"))
    expected = letters(within)
    assert list(database.keys("rows", start, end)) == expected
    assert list(database.items("rows", start, end)) == [(key, b"v") for key in expected]
    assert list(database.items_back("rows", start, end)) == [(key, b"v") for key in reversed(expected)]
    assert database.first_key("rows", start, end) == (expected[0] if expected else None)
    assert database.last_key("rows", start, end) == (expected[-1] if expected else None)


def test_presence_is_told_for_each_prefix_over_gaps_and_deleted_keys(database: Database) -> None:
    put(database, *(b"%02d-%d" % (number, sink) for number in range(40) for sink in range(2)))
    delete(database, *(b"%02d-%d" % (number, sink) for number in range(10, 30) for sink in range(2)))
    delete(database, b"05-0", b"39-0", b"39-1")
    wanted = [b"%02d" % number for number in range(45)]
    there = {b"%02d" % number for number in [*range(10), *range(30, 39)]}
    assert database.present("rows", wanted) == there
    assert database.present("rows", [b"12"]) == set()
    assert database.present("rows", []) == set()


def test_many_keys_are_read_in_order_with_none_for_those_missing(database: Database) -> None:
    put(database, *letters("ac"))
    assert database.get_many("rows", letters("abc")) == [b"v", None, b"v"]
    assert database.get_many("rows", []) == []


def test_a_mistake_of_ours_is_no_trouble_of_the_store_nor_its_own_cause(database: Database) -> None:
    with pytest.raises(TypeError) as caught:
        database.write(None)  # type: ignore[arg-type]
    assert caught.value.__cause__ is None


def test_what_the_store_refuses_keeps_its_cause(database: Database) -> None:
    batch = database.batch()
    database.close()
    with pytest.raises(StoreError) as caught:
        database.write(batch)
    assert caught.value.__cause__ is not None


READS: dict[str, Callable[[Database], object]] = {
    "keys": lambda store: list(store.keys("rows", b"", b"\xff")),
    "items": lambda store: list(store.items("rows", b"", b"\xff")),
    "items_back": lambda store: list(store.items_back("rows", b"", b"\xff")),
    "present": lambda store: store.present("rows", [b"%06d" % number for number in range(5000)]),
    "get_many": lambda store: store.get_many("rows", [b"%06d" % number for number in range(5000)]),
}


@pytest.mark.parametrize("read", READS)
def test_a_block_that_cannot_be_read_is_an_error_and_not_the_end_of_the_data(tmp_path: Path, read: str) -> None:
    database = opened(tmp_path / "store")
    for start in range(0, 5000, 500):
        put(database, *(b"%06d" % number for number in range(start, start + 500)), value=bytes(range(200)))
    file = write_out(database, "rows")
    database.close()
    damage_table(file)
    database = opened(tmp_path / "store")
    with pytest.raises(StoreError, match="Corruption"):
        READS[read](database)
    database.close()


def test_a_table_file_that_is_gone_is_refused_at_opening(tmp_path: Path) -> None:
    database = opened(tmp_path / "store")
    put(database, b"a")
    file = write_out(database, "rows")
    database.close()
    file.unlink()
    with pytest.raises(StoreError, match=str(tmp_path / "store")):
        opened(tmp_path / "store")


# -- what a crash leaves behind ------------------------------------------------------


def image_of(tmp_path: Path, batches: int) -> Path:
    """The crash image of a store that has written `batches` batches of two keys each."""
    database = opened(tmp_path / "store")
    for number in range(batches):
        put(database, b"%04d-a" % number, b"%04d-b" % number, value=b"x" * 100)
    image = crash_image(tmp_path / "store")
    database.close()
    return image


def test_a_crash_image_is_whole(tmp_path: Path) -> None:
    database = opened(image_of(tmp_path, 50))
    assert len(list(database.keys("rows", b"", b"\xff"))) == 100
    database.close()


@pytest.mark.parametrize("cut", [1, 7, 60, 200, 1000])
def test_a_torn_tail_is_dropped_by_whole_batches(tmp_path: Path, cut: int) -> None:
    image = image_of(tmp_path, 50)
    log = wal(image)
    log.write_bytes(log.read_bytes()[:-cut])
    database = opened(image)
    found = list(database.keys("rows", b"", b"\xff"))
    whole = len(found) // 2
    assert 50 - cut // 200 - 2 <= whole < 50
    assert found == [b"%04d-%c" % (number, letter) for number in range(whole) for letter in b"ab"]
    database.close()


def test_a_tail_of_zeros_that_a_file_system_left_is_dropped(tmp_path: Path) -> None:
    image = image_of(tmp_path, 50)
    log = wal(image)
    log.write_bytes(log.read_bytes() + bytes(8192))
    database = opened(image)
    assert len(list(database.keys("rows", b"", b"\xff"))) == 100
    database.close()


@pytest.mark.parametrize("at", [100, 5000, 40_000, -300])
def test_damage_in_the_wal_is_refused_and_names_the_directory(tmp_path: Path, at: int) -> None:
    image = image_of(tmp_path, 200)
    log = wal(image)
    flip(log, at % log.stat().st_size)
    before = log.read_bytes()
    with pytest.raises(StoreDamagedError) as refused:
        opened(image)
    assert str(image) in str(refused.value)
    assert "backup" in str(refused.value)
    assert log.read_bytes() == before  # nothing was thrown away


def test_a_damaged_length_before_the_last_block_of_the_wal_is_refused(tmp_path: Path) -> None:
    """In the last 32 KiB RocksDB cannot tell it from a torn tail, and drops what follows."""
    image = image_of(tmp_path, 200)
    log = wal(image)
    data = bytearray(log.read_bytes())
    data[4:6] = b"\xff\xff"
    log.write_bytes(data)
    with pytest.raises(StoreDamagedError):
        opened(image)


def test_a_lost_manifest_is_refused(tmp_path: Path) -> None:
    image = image_of(tmp_path, 5)
    for file in image.glob("MANIFEST-*"):
        file.unlink()
    with pytest.raises(StoreError, match=str(image)):
        opened(image)


def test_a_store_with_families_of_a_newer_release_is_refused_as_that(tmp_path: Path) -> None:
    Database(tmp_path / "store", ("rows", "hooks", "later"), blobs="hooks", churning=()).close()
    with pytest.raises(StoreFormatError, match=r"newer release.*later"):
        opened(tmp_path / "store")


# -- locks, closing ----------------------------------------------------------------


def test_a_second_process_is_refused_with_the_way_out(database: Database) -> None:
    code = (
        "import sys; from pathlib import Path; from ankusa.store.database import Database\n"
        "from ankusa.store.errors import StoreLockedError\n"
        "try: Database(Path(sys.argv[1]), ('rows', 'hooks'), blobs='hooks', churning=())\n"
        "except StoreLockedError as error: print(error); sys.exit(7)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(database.path)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 7, ran.stderr
    assert str(database.path) in ran.stdout
    assert "node.data_dir" in ran.stdout


def test_closing_gives_the_lock_back_although_a_batch_lives_on(tmp_path: Path) -> None:
    database = opened(tmp_path / "store")
    batch = database.batch()
    batch.put(b"a", b"", database.handles["rows"])
    database.write(batch)
    scan = database.keys("rows", b"", b"\xff")
    next(scan)
    with pytest.raises(StoreLockedError):
        opened(tmp_path / "store")
    scan.close()  # type: ignore[attr-defined]
    database.close()
    database.close()
    opened(tmp_path / "store").close()


def test_a_closed_database_answers_with_an_error(tmp_path: Path) -> None:
    database = opened(tmp_path / "store")
    database.close()
    for read in READS.values():
        with pytest.raises(StoreError, match="closed"):
            read(database)


def test_a_directory_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="file"):
        opened(tmp_path / "file" / "store")


def test_an_image_can_be_opened_beside_its_original(database: Database, tmp_path: Path) -> None:
    put(database, b"a")
    image = tmp_path / "copy"
    shutil.copytree(database.path, image)
    copy = opened(image)
    put(copy, b"b")
    assert list(database.keys("rows", b"", b"\xff")) == [b"a"]
    copy.close()


def test_a_rotten_table_of_any_family_is_refused(tmp_path: Path) -> None:
    """However many tables there are: RocksDB itself looks at some of them as it opens."""
    families = tuple(f"family-{number:02d}" for number in range(24))

    def opened_wide() -> Database:
        return Database(tmp_path / "store", families, blobs=families[0], churning=())

    database = opened_wide()
    batch = database.batch()
    for family in families:
        batch.put(b"key", b"value", database.handles[family])
    database.write(batch)
    database.close()
    opened_wide().close()  # writes out what the log has
    tables = sorted((tmp_path / "store").glob("*.sst"))
    assert len(tables) == len(families)
    for table in tables:
        whole = table.read_bytes()
        table.write_bytes(whole[:-64] + bytes(byte ^ 0xFF for byte in whole[-64:]))
        with pytest.raises(StoreDamagedError):
            opened_wide()
        table.write_bytes(whole)
    opened_wide().close()
