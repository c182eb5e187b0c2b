"""The emulated Cloud Storage under the clients that the workloads use: google-cloud-storage and pyarrow."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import socket
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, cast

import google_crc32c
import pytest
import requests
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from emulator.google.callers import SERVER
from emulator.google.cloud import Cloud
from emulator.google.errors import RefusedCall
from emulator.google.storage import ObjectStore
from emulator.google.storage_index import Index
from emulator.machine.state import State
from tests.emulator.google import PROJECT, Google, served


@pytest.fixture
def google(google: Google) -> Google:
    """The module's Google with one bucket, new and empty."""
    for bucket in google.cloud.list("storage/bucket"):
        ObjectStore(google.cloud).drop(bucket.name, force=True)
        google.cloud.delete("storage/bucket", bucket.name)
    google.make_bucket("runs")
    return google


@pytest.fixture
def client(google: Google, monkeypatch: pytest.MonkeyPatch) -> storage.Client:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{google.host}")
    return storage.Client(project=PROJECT, credentials=AnonymousCredentials())


@pytest.fixture
def arrow(google: Google) -> fs.GcsFileSystem:
    return fs.GcsFileSystem(
        anonymous=True, scheme="http", endpoint_override=google.host, retry_time_limit=timedelta(seconds=5)
    )


def stored(client: storage.Client, name: str) -> storage.Blob:
    """The object as the server has it."""
    found = client.bucket("runs").get_blob(name)
    assert found is not None
    return found


def encoded(digest: bytes) -> str:
    """A checksum as the API gives it."""
    return base64.b64encode(digest).decode()


def test_a_bucket_exists_only_if_the_cloud_has_it(
    google: Google, client: storage.Client, arrow: fs.GcsFileSystem
) -> None:
    assert client.get_bucket("runs").location == "US-CENTRAL1"
    assert [bucket.name for bucket in client.list_buckets()] == ["runs"]
    with pytest.raises(exceptions.NotFound, match="The specified bucket does not exist"):
        client.get_bucket("others")
    with pytest.raises(exceptions.NotFound):
        client.bucket("others").blob("a").upload_from_string("a")
    assert arrow.get_file_info("others/a").type == fs.FileType.NotFound
    client.create_bucket("others", location="us-central1").blob("a").upload_from_string("a")
    with pytest.raises(exceptions.Conflict, match="not empty"):
        client.get_bucket("others").delete()
    client.get_bucket("others").delete(force=True)
    assert [bucket.name for bucket in client.list_buckets()] == ["runs"]
    google.cloud.delete("storage/bucket", "runs")
    with pytest.raises(exceptions.NotFound):
        client.get_bucket("runs")


def test_an_object_comes_back_as_it_was_written_by_every_kind_of_upload(client: storage.Client, google: Google) -> None:
    bucket, content = client.bucket("runs"), os.urandom(3 << 20)
    small = bucket.blob("dir/small.json")
    small.metadata = {"step": "7"}
    small.upload_from_string(b'{"a": 1}', content_type="application/json")
    chunked = bucket.blob("dir/ünder score+%20.bin", chunk_size=256 * 1024)
    chunked.upload_from_file(io.BytesIO(content), size=None)
    resumed = bucket.blob("dir/resumable.bin", chunk_size=1 << 20)
    resumed.upload_from_file(io.BytesIO(content), size=len(content), checksum="md5")
    with cast(BinaryIO, bucket.blob("dir/stream.bin").open("wb", chunk_size=256 * 1024)) as stream:
        stream.write(content)
    empty = bucket.blob("empty")
    empty.upload_from_string(b"")

    found = stored(client, "dir/small.json")
    assert (found.content_type, found.metadata, found.size) == ("application/json", {"step": "7"}, 8)
    for name in ("dir/ünder score+%20.bin", "dir/resumable.bin", "dir/stream.bin"):
        assert bucket.blob(name).download_as_bytes(checksum="crc32c") == content
        assert (google.folder("runs") / name).read_bytes() == content
    assert stored(client, "dir/resumable.bin").md5_hash == encoded(hashlib.md5(content).digest())
    assert stored(client, "dir/stream.bin").md5_hash is None  # as of a composite object: the client sent none along
    assert bucket.blob("dir/resumable.bin").download_as_bytes(checksum="md5") == content
    assert empty.download_as_bytes() == b""
    assert bucket.blob("dir/stream.bin").download_as_bytes(start=100, end=1099) == content[100:1100]
    assert not list((google.cloud.directory / "uploads").iterdir())


def test_a_listing_knows_prefixes_delimiters_and_pages(client: storage.Client) -> None:
    bucket = client.bucket("runs")
    names = ["a/1", "a/2", "a/b/3", "b", "c/4", "é"]
    for name in reversed(names):
        bucket.blob(name).upload_from_string(name)
    assert [blob.name for blob in client.list_blobs("runs")] == names
    assert [blob.name for blob in client.list_blobs("runs", prefix="a/", page_size=1)] == ["a/1", "a/2", "a/b/3"]
    top: Any = client.list_blobs("runs", delimiter="/", page_size=2)
    assert [blob.name for blob in top] == ["b", "é"]
    assert sorted(top.prefixes) == ["a/", "c/"]
    assert [blob.name for blob in client.list_blobs("runs", start_offset="a/2", end_offset="c/4")] == [
        "a/2",
        "a/b/3",
        "b",
    ]
    assert not list(client.list_blobs("runs", prefix="nothing/here"))


def test_preconditions_decide_between_two_writers(client: storage.Client, google: Google) -> None:
    blob = client.bucket("runs").blob("lease")
    blob.upload_from_string("one", if_generation_match=0)
    first = blob.generation
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string("two", if_generation_match=0)
    blob.upload_from_string("two", if_generation_match=first)
    assert first is not None and blob.generation is not None and blob.generation > first
    with pytest.raises(exceptions.PreconditionFailed):
        blob.delete(if_generation_match=first)
    with pytest.raises(exceptions.NotFound):
        client.bucket("runs").blob("lease", generation=first).download_as_bytes()

    nameless = f"{os.environ['STORAGE_EMULATOR_HOST']}/upload/storage/v1/b/runs/o?uploadType=media"
    assert requests.post(nameless, data=b"two", timeout=10).status_code == 400

    wins: list[int] = []

    def claim(number: int) -> None:
        try:
            client.bucket("runs").blob("claim").upload_from_string(str(number), if_generation_match=0)
            wins.append(number)
        except exceptions.PreconditionFailed:
            pass

    writers = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(wins) == 1
    assert client.bucket("runs").blob("claim").download_as_text() == str(wins[0])
    assert not list((google.cloud.directory / "uploads").iterdir())


def test_objects_are_rewritten_and_deleted(client: storage.Client, google: Google) -> None:
    google.make_bucket("data")
    bucket = client.bucket("runs")
    bucket.blob("one").upload_from_string("1", content_type="text/one")
    bucket.blob("two").upload_from_string("2")
    client.bucket("data").blob("copied").rewrite(bucket.blob("one"))
    copied = client.bucket("data").get_blob("copied")
    assert copied is not None and copied.content_type == "text/one"
    assert copied.download_as_bytes() == b"1"
    three = bucket.blob("three")
    three.metadata = {"best": "yes"}
    three.rewrite(bucket.blob("two"))
    assert stored(client, "three").metadata == {"best": "yes"}
    bucket.delete_blobs(list(bucket.list_blobs()))
    assert not list(bucket.list_blobs())
    with pytest.raises(exceptions.NotFound, match="No such object: runs/one"):
        bucket.blob("one").delete()


def test_a_body_that_is_no_objects_is_refused_and_a_whole_one_sent_back_changes_what_a_caller_may(
    client: storage.Client, google: Google
) -> None:
    client.bucket("runs").blob("one").upload_from_string("1")
    here = f"http://{google.host}/storage/v1/b/runs/o/one/rewriteTo/b/runs/o/two"
    for body, words in (
        ({"contenttype": "text/x"}, 'Unknown name "contenttype"'),
        ({"metadata": {"best": 1}}, "Invalid value at 'metadata[best]'"),
    ):
        refused = requests.post(here, json=body, timeout=10)
        said = refused.json()["error"]["message"]
        assert (refused.status_code, words in said) == (400, True), said
    assert client.bucket("runs").get_blob("two") is None
    whole = requests.get(here.partition("/rewriteTo")[0], timeout=10).json()
    changed = {"contentType": "text/x", "metageneration": "9", "timeCreated": "2001-01-01T00:00:00Z"}
    assert requests.post(here, json={**whole, **changed}, timeout=10).status_code == 200
    now = stored(client, "two")
    assert now.time_created is not None
    assert (now.content_type, now.metageneration, now.time_created.year > 2001) == ("text/x", 1, True)


def test_a_spoilt_upload_is_refused_and_leaves_the_object_as_it_was(client: storage.Client, google: Google) -> None:
    blob = client.bucket("runs").blob("weights")
    blob.upload_from_string("good")
    address = f"{os.environ['STORAGE_EMULATOR_HOST']}/upload/storage/v1/b/runs/o?uploadType=media&name=weights"
    for kind in ("crc32c", "md5"):
        spoilt = requests.post(address, data=b"spoilt", headers={"X-Goog-Hash": f"{kind}=AAAAAA=="}, timeout=10)
        assert spoilt.status_code == 400
        assert f"doesn't match calculated {kind.upper()}" in spoilt.json()["error"]["message"]
    assert client.bucket("runs").blob("weights").download_as_bytes() == b"good"
    stream = cast(BinaryIO, client.bucket("runs").blob("weights", chunk_size=256 * 1024).open("wb"))
    stream.write(os.urandom(1 << 20))
    assert client.bucket("runs").blob("weights").download_as_bytes() == b"good"
    stream.close()
    assert stored(client, "weights").size == 1 << 20
    upload = requests.post(address.replace("=media", "=resumable"), timeout=10).headers["Location"]
    ended = [requests.put(upload, data=b"spoilt", headers={"X-Goog-Hash": "md5=AA=="}, timeout=10) for _ in range(2)]
    assert [answer.status_code for answer in ended] == [400, 404]
    assert stored(client, "weights").size == 1 << 20
    assert not list((google.cloud.directory / "uploads").iterdir())


def test_what_is_sent_again_takes_the_place_of_what_was_sent_before(client: storage.Client) -> None:
    content = os.urandom(3 << 18)
    address = f"{os.environ['STORAGE_EMULATOR_HOST']}/upload/storage/v1/b/runs/o?uploadType=resumable&name=weights"
    upload = requests.post(address, timeout=10).headers["Location"]

    def send(part: bytes, where: str) -> requests.Response:
        return requests.put(upload, data=part, headers={"Content-Range": f"bytes {where}"}, timeout=10)

    begun = send(bytes(2 << 18), f"0-{(2 << 18) - 1}/*")
    beyond = send(content, f"{1 << 20}-{(1 << 20) + len(content) - 1}/*")
    again = send(content[:300_000], "0-299999/*")
    ended = send(content[1 << 18 :], f"{1 << 18}-{len(content) - 1}/{len(content)}")

    assert [answer.status_code for answer in (begun, beyond, again, ended)] == [308, 400, 308, 200]
    assert [answer.headers["Range"] for answer in (begun, again)] == ["bytes=0-524287", "bytes=0-299999"]
    assert client.bucket("runs").blob("weights").download_as_bytes(checksum="crc32c") == content
    assert ended.json()["crc32c"] == encoded(google_crc32c.Checksum(content).digest())


def test_pyarrow_sees_folders_files_and_twenty_megabytes(arrow: fs.GcsFileSystem) -> None:
    content = os.urandom(20 << 20)
    arrow.create_dir("runs/a/b", recursive=True)
    with arrow.open_output_stream("runs/a/b/large") as stream:
        for start in range(0, len(content), 3 << 20):
            stream.write(content[start : start + (3 << 20)])
        assert arrow.get_file_info("runs/a/b/large").type == fs.FileType.NotFound
    with arrow.open_output_stream("runs/a/small", metadata={"Content-Type": "text/plain"}) as stream:
        stream.write(b"small")
    assert arrow.get_file_info("runs/a/b").type == fs.FileType.Directory
    found = arrow.get_file_info(fs.FileSelector("runs/a", recursive=True))
    assert sorted((info.path, info.type, info.size) for info in found) == [
        ("runs/a/b", fs.FileType.Directory, None),
        ("runs/a/b/large", fs.FileType.File, len(content)),
        ("runs/a/small", fs.FileType.File, 5),
    ]
    assert sorted(info.base_name for info in arrow.get_file_info(fs.FileSelector("runs/a"))) == ["b", "small"]
    with arrow.open_input_file("runs/a/b/large") as file:
        assert file.size() == len(content)
        file.seek(7_000_000)
        assert file.read(1000) == content[7_000_000:7_001_000]
    with arrow.open_input_stream("runs/a/b/large") as stream:
        assert stream.read() == content
    arrow.copy_file("runs/a/small", "runs/a/copy")
    arrow.move("runs/a/copy", "runs/a/moved")
    assert arrow.get_file_info("runs/a/moved").size == 5
    arrow.delete_dir("runs/a/b")
    arrow.delete_file("runs/a/small")
    assert arrow.get_file_info("runs/a/b").type == fs.FileType.NotFound
    assert [info.path for info in arrow.get_file_info(fs.FileSelector("runs", recursive=True)) if info.is_file] == [
        "runs/a/moved"
    ]
    with pytest.raises(FileNotFoundError):
        arrow.open_input_file("runs/a/b/large")


def test_a_folder_of_a_bucket_stands_for_its_mount(
    google: Google, client: storage.Client, arrow: fs.GcsFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.bucket("runs").blob("run/log.txt").upload_from_string("one\n")
    mount = google.folder("runs")
    with (mount / "run" / "log.txt").open("a") as file:
        file.write("two\n")
    (mount / "made" / "by").mkdir(parents=True)
    (mount / "run" / "plot.png").write_bytes(b"\x89PNG")

    assert stored(client, "run/log.txt").download_as_bytes(checksum="crc32c") == b"one\ntwo\n"
    assert stored(client, "run/plot.png").content_type == "image/png"
    assert [blob.name for blob in client.list_blobs("runs")] == ["made/by/", "run/log.txt", "run/plot.png"]
    assert arrow.get_file_info("runs/made/by").type == fs.FileType.Directory
    for blob in client.list_blobs("runs", prefix="run/"):
        blob.delete()
    assert not (mount / "run").exists()
    assert (mount / "made" / "by").is_dir()

    gone = mount / "gone"
    gone.touch()
    monkeypatch.setattr(Index, "get", lambda *_: gone.unlink())  # by somebody else, while it is looked at
    assert ObjectStore(google.cloud).stat("runs", "gone") is None


@pytest.mark.parametrize("name", ["../secret", "a/../../b", "/etc/passwd", "a//b", "a/./b", "x" * 300])
def test_a_name_that_a_folder_cannot_hold_is_refused_by_name(client: storage.Client, name: str) -> None:
    with pytest.raises(exceptions.BadRequest, match="cannot be kept here"):
        client.bucket("runs").blob(name).upload_from_string("x", retry=DEFAULT_RETRY.with_timeout(1))


_part = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="/"), min_size=1, max_size=20
).filter(lambda part: part not in (".", ".."))


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(st.sets(st.lists(_part, min_size=1, max_size=3).map("/".join), max_size=8), st.data())
def test_what_was_put_and_not_deleted_is_listed(
    tmp_path_factory: pytest.TempPathFactory, names: set[str], data: st.DataObject
) -> None:
    cloud = Cloud(tmp_path_factory.mktemp("store"))
    cloud.put("storage/bucket", "b", {"name": "b"})
    store, held = ObjectStore(cloud), set[str]()
    for name in sorted(names):
        content = store.temporary()
        content.write_text(name)
        try:
            store.put("b", name, content)
            held.add(name)
        except RefusedCall:  # a file where another name needs a folder
            assert any(other.startswith(f"{name}/") or name.startswith(f"{other}/") for other in held)
    for name in data.draw(st.sets(st.sampled_from(sorted(held)))) if held else ():
        store.delete("b", name)
        held.discard(name)
    assert set(store.names("b")) == held
    assert all(store.path("b", name).read_text() == name for name in held)
    assert not any(not list(folder.iterdir()) for folder in store.folder("b").rglob("*") if folder.is_dir())


@pytest.mark.thorough
def test_a_bucket_that_is_made_again_has_what_it_held_before_the_cloud_was_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generations = []
    for first in (True, False):
        with served(tmp_path) as google:
            google.make_bucket("kept")
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{google.host}")
            blob = storage.Client(project=PROJECT, credentials=AnonymousCredentials()).bucket("kept").blob("a/run")
            if first:
                blob.metadata = {"of": "mine"}
                blob.upload_from_string(b"its content", content_type="text/mine")
            blob.reload()
            assert (blob.download_as_bytes(), blob.content_type, blob.metadata) == (
                *(b"its content", "text/mine"),
                {"of": "mine"},
            )
            generations.append(blob.generation)
        state = State(tmp_path)
        state.stop_all()
        state.clear()
        assert not (tmp_path / "cloud.sqlite").exists()
    assert len(set(generations)) == 1


@pytest.mark.thorough
def test_a_request_that_the_end_of_the_server_cuts_off_is_no_mistake_of_its_own(tmp_path: Path) -> None:
    head = "POST /upload/storage/v1/b/{}/o?uploadType=media&name=x HTTP/1.1\r\nHost: {}\r\nContent-Length: 99\r\n\r\n"
    with served(tmp_path) as google:  # which looks for tracebacks
        bucket = google.make_bucket("stalled")
        host, _, port = google.host.rpartition(":")
        stalled = socket.create_connection((host, int(port)))
        stalled.sendall(head.format(bucket, google.host).encode() + b"a part of it")
        assert (
            storage.Client(PROJECT, AnonymousCredentials(), client_options={"api_endpoint": f"http://{google.host}"})
            .bucket(bucket)
            .exists()
        )
    stalled.close()
    assert "Cancel 1 running task(s)" in State(tmp_path).log(SERVER).read_text()
