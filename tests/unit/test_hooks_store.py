"""The trace folder and the routes on top of it, without a server."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from drafttrace.hooks.config import Settings, owners_of, trace_id_of
from drafttrace.hooks.routes import Service
from drafttrace.hooks.store import Store, identity, write_json

NOBODY = 2**22 - 7  # a process number that no machine of ours hands out


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path)
    made.create()
    return made


def service(store: Store, **settings: Any) -> Service:
    return Service(Settings(store.directory, **settings), store, lambda: {"supported": True, "reason": None})


def test_a_trace_goes_from_waiting_to_complete(store: Store) -> None:
    store.ask("one", {})
    assert store.state("one").state == "waiting"  # type: ignore[union-attr]
    write_json(store.state_path("one"), {"state": "recording", "rows": 3, **identity()})
    assert store.state("one").state == "recording"  # type: ignore[union-attr]
    write_json(store.state_path("one"), {"state": "complete", "rows": 9, **identity()})
    state = store.state("one")
    assert state is not None and state.finished and state.rows == 9


def test_a_recording_of_a_dead_process_is_incomplete(store: Store) -> None:
    store.ask("one", {})
    write_json(store.state_path("one"), {"state": "recording", "rows": 3, "pid": NOBODY})
    state = store.state("one")
    assert state is not None and state.state == "incomplete" and "gone" in (state.reason or "")


def test_a_number_that_another_process_has_now_is_not_the_recorder(store: Store) -> None:
    """Containers give the same process numbers at every start."""
    store.ask("one", {})
    write_json(store.state_path("one"), {"state": "recording", **identity(), "birth": "1"})
    assert store.state("one").state == "incomplete"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a.b", "x" * 65, ".status"])
def test_nothing_outside_the_folder_can_be_named(store: Store, name: str) -> None:
    for path in (store.trace_path, store.request_path, store.state_path, store.delete):
        with pytest.raises(ValueError, match="no trace id"):
            path(name)
    assert service(store).find(name)[1][0] == 400
    assert service(store).delete(name)[0] == 400
    if name:  # without an id, one is made
        assert service(store).start({"id": name})[0] == 400


def test_the_second_client_with_an_id_is_refused(store: Store) -> None:
    assert service(store).start({"id": "mine"})[0] == 200
    status, answer = service(store).start({"id": "mine"})
    assert status == 409 and "mine" in answer["error"]


def test_a_token_is_wanted_where_one_is_set(store: Store) -> None:
    guarded = service(store, token="s3cret")
    assert guarded.start({})[0] == 403 and guarded.start({"token": "wrong"})[0] == 403
    assert guarded.start({"token": "s3cret"})[0] == 200


def test_budgets_are_kept(store: Store) -> None:
    tight = service(store, max_traces=1)
    assert tight.start({})[0] == 200
    assert tight.start({})[0] == 429
    (store.directory / "full.h5").write_bytes(b"x" * 100)
    status, answer = service(store, max_dir_bytes=50).start({})
    assert status == 429 and "50" in answer["error"]


def test_a_plugin_that_is_off_says_why(store: Store) -> None:
    off = Service(
        Settings(store.directory), store, lambda: {"supported": False, "reason": "SGLang 0.4 is too old."}
    )
    status, answer = off.start({})
    assert status == 503 and "0.4" in answer["error"]


@pytest.mark.parametrize("body", [None, [], "x", {"taps": 3}, {"taps": {"boundaries": "some"}}, {"id": 5}])
def test_a_bad_body_is_one_sentence(store: Store, body: Any) -> None:
    status, answer = service(store).start(body)
    assert status == 400 and answer["error"].endswith(".")


def test_a_folder_that_is_gone_is_told(store: Store) -> None:
    for path in store.directory.iterdir():
        path.rmdir()
    store.directory.rmdir()
    status, answer = service(store).start({})
    assert status == 507 and str(store.directory) in answer["error"]
    assert service(store).list() == (200, {"traces": []})


def test_deleting_removes_every_file_of_a_trace_and_no_other(store: Store) -> None:
    for name in ("a", "ab"):
        store.ask(name, {})
        store.trace_path(name).write_bytes(b"h5")
        store.rank_path(name, 1).write_bytes(b"n")
        write_json(store.state_path(name), {"state": "complete"})
    assert service(store).delete("a")[0] == 200
    assert sorted(store.ids()) == ["ab"]
    assert service(store).delete("a")[0] == 404


def test_only_the_living_are_asked(store: Store) -> None:
    store.write_status("me", {"role": "scheduler"})
    (store.status_directory / "dead.json").write_text(json.dumps({"pid": NOBODY}))
    assert [status["role"] for status in store.statuses()] == ["scheduler"]
    store.forget_the_dead()
    assert [path.name for path in store.status_directory.iterdir()] == ["me.json"]


def test_a_folder_that_nothing_came_into_is_taken_away_again(tmp_path: Path) -> None:
    """A server that failed to start left an empty trace folder behind."""
    store = Store(tmp_path / "traces")
    assert store.create() and not store.create()
    store.remove_empty()
    assert not store.directory.exists()
    assert store.create()
    store.write_status("http", {})
    store.remove_empty()
    assert len(store.statuses()) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [("many", "many_0"), ("many_0", "many"), ("x", "x_rank1"), ("x_rank1", "x"), ("x", "x_0_prefix_rank2")],
)
def test_no_client_has_the_name_of_a_part_of_anothers_trace(store: Store, first: str, second: str) -> None:
    """Client B had asked for many_0, and the first sample of A's request under many went into it."""
    assert service(store).start({"id": first})[0] == 200
    status, answer = service(store).start({"id": second})
    assert status == 409 and f"'{first}'" in answer["error"] and f"'{second}'" in answer["error"]
    assert store.delete(first) and service(store).start({"id": second})[0] == 200


def test_ids_that_only_look_alike_are_free(store: Store) -> None:
    for name in ("run", "run_a", "run-1", "other_7", "running_1"):
        assert service(store).start({"id": name})[0] == 200, name
    assert owners_of("x_0_rank1") == ["x_0", "x"] and owners_of("x_a") == []


def test_another_clients_trace_is_no_part_of_a_batch(store: Store) -> None:
    """A waiting trace read as a batch whose part was somebody else's trace, or another rank's file of itself."""
    for name in ("run", "run_a"):
        store.ask(name, {})
    write_json(store.state_path("run_a"), {"state": "complete", **identity()})
    write_json(store.state_path("run_rank1"), {"state": "recording", **identity()})
    assert store.state("run").state == "waiting"  # type: ignore[union-attr]
    write_json(store.state_path("run_0"), {"state": "complete", **identity()})
    assert "a batch; each part has a trace of its own: run_0" in (store.state("run").reason or "")  # type: ignore[union-attr]


def test_an_id_of_64_characters_has_room_for_its_parts(store: Store) -> None:
    """The part of a rank or of a sample was too long: that ended the writer thread, or nothing was recorded."""
    name = "z" * 64
    assert service(store).start({"id": name})[0] == 200
    for part in (f"{name}_rank1", f"{name}_0", f"{name}_0_prefix_rank12"):
        assert store.state_path(part).name.startswith(part)
        assert trace_id_of(f"drafttrace-{part}") == part
    assert store.request_of(f"{name}_0_1") == store.request_of(name) is not None


def test_a_reservation_that_never_began_expires(store: Store) -> None:
    """Requests that the server refused left traces that waited for ever, and filled --max-traces."""
    store.ask("old", {})
    request = json.loads(store.request_path("old").read_text())
    store.request_path("old").write_text(json.dumps({**request, "created": time.time() - 601}))
    state = store.state("old")
    assert state is not None and state.finished and "began within 600 seconds" in (state.reason or "")
    assert service(store, max_traces=1).start({"id": "new"})[0] == 200
    # A request that still comes is recorded.
    write_json(store.state_path("old"), {"state": "recording", **identity()})
    assert store.state("old").state == "recording"  # type: ignore[union-attr]


def test_a_reservation_of_an_earlier_server_does_not_wait(store: Store) -> None:
    store.ask("old", {})
    request = json.loads(store.request_path("old").read_text())
    store.request_path("old").write_text(json.dumps({**request, "pid": NOBODY}))
    state = store.state("old")
    assert state is not None and state.finished and "ended before a request" in (state.reason or "")
    assert service(store, max_traces=1).start({"id": "new"})[0] == 200


def test_a_file_that_nobody_knows_does_not_wait(store: Store) -> None:
    store.trace_path("copied").write_bytes(b"h5")
    state = store.state("copied")
    assert state is not None and state.finished and "its file" in (state.reason or "")


def test_ranks_are_one_trace(store: Store) -> None:
    """record fetched and deleted the first rank's file only, and the others filled the folder; each counted as a trace."""
    store.ask("a", {})
    for name in ("a", "a_rank1", "a_rank2"):
        store.trace_path(name).write_bytes(b"h5")
        write_json(store.state_path(name), {"state": "recording", **identity()})
    store.trace_path("a_rank2").unlink()  # lost
    status, answer = service(store).find("a")[1]
    assert status == 200 and answer["ranks"] == [1]
    assert service(store, max_traces=2).start({"id": "b"})[0] == 200
    assert service(store).delete("a")[0] == 200
    assert sorted(store.ids()) == ["b"]


def test_a_batch_is_deleted_with_its_parts(store: Store) -> None:
    """Its parts stayed in the folder, where they counted against the limits, each to be deleted by name."""
    store.ask("a", {})
    store.ask("b", {})
    for name in ("a_0", "a_1", "a_1_rank1", "b"):
        store.trace_path(name).write_bytes(b"h5")
        write_json(store.state_path(name), {"state": "complete", **identity()})
    assert store.parts("a") == ["a_0", "a_1"]
    assert service(store).delete("a")[0] == 200
    assert sorted(store.ids()) == ["b"]


def test_a_folder_that_went_during_a_recording_is_told(store: Store) -> None:
    """It read "There is no trace ...", as if the client had mistyped the id."""
    store.ask("a", {})
    store.delete("a")
    store.status_directory.rmdir()
    store.directory.rmdir()
    status, answer = service(store).find("a")[1]
    assert status == 507 and f"The trace folder {store.directory} is gone" in answer["error"]
