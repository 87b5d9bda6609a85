"""The stub refuses what S3 refuses, accepts requests of real clients, and fails as its settings require."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.client
import random
import socket
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.s3.plain import text_of, texts_of
from tests.s3.servers import StubServer, stub_server
from tests.s3.sigv4 import Keys, sign
from tests.s3.stub import checksums
from tests.waiting import wait_until

DATA = random.Random(4).randbytes(70_000)


@pytest.fixture(scope="module")
def secure() -> Iterator[StubServer]:
    with stub_server(tls=True) as server:
        yield server


def put(stub: StubServer, key: str, data: bytes = b"data", **headers: str) -> str:
    """Return the error code of a put; empty after success."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = stub.client().request("PUT", key, headers=named, body=data)
    assert (reply.status == 200) == (reply.code == "")
    return reply.code


class TestChecksums:
    def test_crcs_have_the_published_check_values(self) -> None:
        assert checksums.crc32c(b"123456789") == 0xE3069283
        assert checksums.crc64nvme(b"123456789") == 0xAE8B14860A799888

    @pytest.mark.parametrize("size", [0, 1, 8, 4095, 4096, 4097, 65536, 100_003])
    def test_rows_of_bytes_give_the_same_as_one_byte_after_the_other(self, size: int) -> None:
        data = random.Random(size).randbytes(size)
        assert checksums.crc(data, (32, 0xEDB88320)) == zlib.crc32(data)


class TestClients:
    def test_obstore_signs_and_sums_as_the_stub_does(self, stub: StubServer) -> None:
        obstore = pytest.importorskip("obstore")
        from obstore.store import S3Store

        async def use(algorithm: Any, unsigned: bool) -> None:
            store = S3Store(
                stub.bucket,
                endpoint=stub.endpoint,
                region="us-east-1",
                virtual_hosted_style_request=False,
                unsigned_payload=unsigned,
                client_options={"allow_http": True},
                **algorithm,
            )
            await obstore.put_async(store, "a b/\u00e9+1", DATA, use_multipart=False)
            assert (
                bytes(await obstore.get_range_async(store, "a b/\u00e9+1", start=5, length=5)) == DATA[5:10]
            )
            assert [one["path"] for one in await obstore.list(store, "a b").collect_async()] == [
                "a b/\u00e9+1"
            ]
            await obstore.delete_async(store, "a b/\u00e9+1")

        for algorithm in ({}, {"checksum_algorithm": "SHA256"}, {"checksum_algorithm": "CRC64NVME"}):
            for unsigned in (False, True):
                asyncio.run(use(algorithm, unsigned))
        sent = [entry["headers"] for entry in stub.log("PutObject")]
        assert sum("x-amz-checksum-crc64nvme" in headers for headers in sent) == 2
        assert all(entry["status"] < 300 for entry in stub.log())

    @pytest.mark.parametrize("how", ["when_supported", "when_required"])
    def test_aiobotocore_signs_and_sums_as_the_stub_does(
        self, stub: StubServer, secure: StubServer, how: Any
    ) -> None:
        pytest.importorskip("aiobotocore")
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session
        from botocore.exceptions import ClientError

        async def use(server: StubServer) -> None:
            config = AioConfig(
                request_checksum_calculation=how,
                s3={"addressing_style": "path"},
                retries={"total_max_attempts": 1, "mode": "standard"},
            )
            async with get_session().create_client(
                "s3",
                endpoint_url=server.endpoint,
                region_name="us-east-1",
                config=config,
                verify=server.ca_bundle or True,
            ) as client:
                await client.put_object(Bucket=server.bucket, Key="a b/\u00e9+1", Body=DATA)
                with pytest.raises(ClientError, match="BadDigest"):
                    await client.put_object(
                        Bucket=server.bucket, Key="x", Body=b"1", ChecksumCRC32C="AAAAAA=="
                    )
                read = await client.get_object(
                    Bucket=server.bucket, Key="a b/\u00e9+1", ChecksumMode="ENABLED"
                )
                assert await read["Body"].read() == DATA
                listed = await client.list_objects_v2(Bucket=server.bucket)
                assert [one["Key"] for one in listed["Contents"]] == ["a b/\u00e9+1"]
                objects: Any = {"Objects": [{"Key": "a b/\u00e9+1"}]}
                await client.delete_objects(Bucket=server.bucket, Delete=objects)

        secure.reset()
        for server in (stub, secure):
            asyncio.run(use(server))
            assert server.objects() == {}
        first = secure.log("PutObject")[0]["headers"]
        streamed = first["x-amz-content-sha256"] == "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
        assert streamed == (how == "when_supported")


class TestSignatures:
    def refused(self, stub: StubServer, keys: Keys, *, now: datetime | None = None, **change: str) -> str:
        """Return the error code of a signed GET of the bucket whose headers were changed after signing."""
        host = f"127.0.0.1:{stub.port}"
        target = f"/{stub.bucket}?list-type=2"
        headers = sign(
            keys, method="GET", target=target, headers={"host": host}, body=b"", region="us-east-1", now=now
        )
        changed = {**headers, **{name.replace("_", "-"): value for name, value in change.items()}}
        connection = stub.client().connect()
        try:
            connection.request("GET", target, headers=changed)
            return text_of(connection.getresponse().read(), "Code")
        finally:
            connection.close()

    def test_a_good_signature_is_taken(self, stub: StubServer) -> None:
        assert self.refused(stub, stub.keys) == ""

    def test_each_wrong_part_has_its_own_code(self, stub: StubServer) -> None:
        empty = hashlib.sha256(b"other").hexdigest()
        hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
        assert self.refused(stub, replace(stub.keys, secret_key="x")) == "SignatureDoesNotMatch"
        assert self.refused(stub, stub.keys, x_amz_content_sha256=empty) == "SignatureDoesNotMatch"
        assert self.refused(stub, replace(stub.keys, access_key="X")) == "InvalidAccessKeyId"
        assert self.refused(stub, stub.keys, now=hour_ago) == "RequestTimeTooSkewed"
        assert self.refused(stub, stub.keys, x_amz_tagging="a=b") == "AccessDenied"  # not signed
        assert self.refused(stub, stub.keys, authorization="Basic x") == "AuthorizationHeaderMalformed"
        assert stub.client().request("GET", "x", signed=False).code == "AccessDenied"

    def test_expired_tokens_and_new_keys(self, stub: StubServer) -> None:
        first, second = (replace(stub.keys, session_token=name) for name in ("first", "second"))
        stub.set(expired_tokens=["first"])
        assert self.refused(stub, first) == "ExpiredToken"
        assert self.refused(stub, second) == ""
        stub.set(expired=True)
        assert self.refused(stub, second) == "ExpiredToken"
        stub.set(expired=False, accept_keys={"NEW": "secret"})
        assert self.refused(stub, first) == "InvalidAccessKeyId"
        assert self.refused(stub, Keys(access_key="NEW", secret_key="secret")) == ""


class TestBodies:
    @pytest.mark.parametrize("name", sorted(checksums.ALGORITHMS))
    def test_only_the_right_checksum_is_stored(self, stub: StubServer, name: str) -> None:
        header = f"x-amz-checksum-{name}"
        assert put(stub, "good", DATA, **{header: checksums.encoded(name, DATA)}) == ""
        assert put(stub, "bad", DATA, **{header: checksums.encoded(name, DATA + b"x")}) == "BadDigest"
        assert put(stub, "bad", DATA, **{header: "AAAA"}) == "InvalidRequest"
        assert stub.objects() == {"good": DATA}
        assert stub.described()["good"]["checksums"] == {header: checksums.encoded(name, DATA)}
        stub.set(ignore_checksums=True)
        assert put(stub, "bad", DATA, **{header: checksums.encoded(name, b"")}) == ""

    def test_content_md5_and_content_sha256_must_hold(self, stub: StubServer) -> None:
        md5 = base64.b64encode(hashlib.md5(b"data").digest()).decode()
        assert put(stub, "a", content_md5=md5) == ""
        assert put(stub, "b", b"date", content_md5=md5) == "BadDigest"
        assert put(stub, "b", content_md5="x") == "InvalidDigest"
        digest = hashlib.sha256(b"data").hexdigest()
        assert put(stub, "b", b"date", x_amz_content_sha256=digest) == "XAmzContentSHA256Mismatch"
        assert put(stub, "c", x_amz_content_sha256="UNSIGNED-PAYLOAD") == ""
        assert sorted(stub.objects()) == ["a", "c"]

    def test_damage_is_refused_where_a_checksum_tells_and_stored_where_none_does(
        self, stub: StubServer
    ) -> None:
        stub.set(corrupt_bodies=2)
        assert put(stub, "a", x_amz_checksum_crc32c=checksums.encoded("crc32c", b"data")) == "BadDigest"
        assert put(stub, "a") == ""
        assert stub.objects() == {"a": b"dad\x71a"[:2] + bytes([ord("t") ^ 0x10]) + b"a"}

    def test_a_body_cut_short_is_not_stored(self, stub: StubServer) -> None:
        with socket.create_connection(("127.0.0.1", stub.port)) as client:
            client.sendall(b"PUT /tdcore-tests/cut HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        wait_until(lambda: [entry["note"] for entry in stub.log()] == ["cut within a body"])
        assert stub.objects() == {}

    def test_who_waits_to_be_told_and_is_refused_sends_no_body(self, stub: StubServer) -> None:
        stub.set(fail_next=["SlowDown"])
        with socket.create_connection(("127.0.0.1", stub.port), timeout=10) as client:
            client.sendall(b"PUT /tdcore-tests/k HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n")
            client.sendall(b"Expect: 100-continue\r\n\r\n")
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 503 ")

    def test_options_of_a_put_are_checked_and_kept(self, stub: StubServer) -> None:
        given = {
            "x-amz-server-side-encryption": "aws:kms",
            "x-amz-server-side-encryption-aws-kms-key-id": "key",
            "x-amz-storage-class": "STANDARD_IA",
            "x-amz-tagging": "a=b&c=d",
        }
        assert put(stub, "a", b"data", **given) == ""
        assert stub.described()["a"]["headers"] == given
        assert put(stub, "b", x_amz_server_side_encryption="DES") == "InvalidEncryptionAlgorithmError"
        assert put(stub, "b", x_amz_storage_class="CLOUD") == "InvalidStorageClass"
        assert put(stub, "b", x_amz_tagging="&".join(f"{n}=1" for n in range(11))) == "InvalidTag"
        assert put(stub, "x" * 1025) == "KeyTooLongError"
        stub.set(requester_pays=True)
        assert put(stub, "b") == "AccessDenied"
        assert put(stub, "b", x_amz_request_payer="requester") == ""


class TestOperations:
    def test_a_put_that_must_be_the_first_is_refused_when_it_is_not(self, stub: StubServer) -> None:
        assert put(stub, "k", b"1", if_none_match="*") == ""
        assert put(stub, "k", b"2", if_none_match="*") == "PreconditionFailed"
        stub.set(not_implemented_if_none_match=True)
        assert put(stub, "other", b"2", if_none_match="*") == "NotImplemented"
        stub.set(ignore_if_none_match=True)
        assert put(stub, "k", b"3", if_none_match="*") == ""
        assert stub.objects() == {"k": b"3"}

    def test_ranges(self, stub: StubServer) -> None:
        put(stub, "k", b"0123456789")
        wanted = {"bytes=2-4": b"234", "bytes=7-": b"789", "bytes=-3": b"789", "bytes=5-99": b"56789"}
        for header, part in wanted.items():
            reply = stub.client().request("GET", "k", headers={"range": header})
            assert (reply.status, reply.body) == (206, part)
        assert stub.client().request("GET", "k", headers={"range": "bytes=10-"}).code == "InvalidRange"
        head = stub.client().request("HEAD", "k")
        assert (head.status, head.headers["content-length"], head.body) == (200, "10", b"")

    def test_listings_come_in_pages_in_the_order_of_bytes(self, stub: StubServer) -> None:
        names = ["a", "a/1", "a/2", "a b&<", "b", "\U0001f600", "\ue000"]
        for name in names:
            put(stub, name)
        stub.set(max_keys=2)
        ordered = sorted(names, key=str.encode)
        assert stub.client().keys_below() == ordered
        assert len(stub.log("ListBucket")) == 4
        assert stub.client().keys_below("a/") == ["a/1", "a/2"]
        query = {"list-type": "2", "start-after": "a/1", "encoding-type": "url"}
        assert texts_of(stub.client().request("GET", query=query).body, "Key") == ["a/2", "b"]
        query = {"list-type": "2", "delimiter": "/"}
        found = texts_of(stub.client().request("GET", query=query).body, "Prefix")
        assert found == [""]
        stub.set(max_keys=1000)
        assert texts_of(stub.client().request("GET", query=query).body, "Prefix") == ["", "a/"]

    def test_many_keys_are_deleted_at_once_and_only_with_a_checksum(self, stub: StubServer) -> None:
        for name in ("a", "b", "c"):
            put(stub, name)
        body = b"<Delete><Object><Key>a</Key></Object><Object><Key>b</Key></Object></Delete>"
        client = stub.client()
        assert client.request("POST", query={"delete": ""}, body=body).code == "InvalidRequest"
        md5 = {"content-md5": base64.b64encode(hashlib.md5(body).digest()).decode()}
        reply = client.request("POST", query={"delete": ""}, headers=md5, body=body)
        assert texts_of(reply.body, "Key") == ["a", "b"]
        assert client.request("DELETE", "never there").status == 204
        assert list(stub.objects()) == ["c"]


class TestRightsAndPlaces:
    def test_denied_actions_say_what_is_missing(self, stub: StubServer) -> None:
        put(stub, "k")
        stub.set(deny=["PutObject", "ListBucket", "kms:GenerateDataKey"])
        reply = stub.client().request("PUT", "k")
        assert (reply.status, reply.code) == (403, "AccessDenied")
        assert "s3:PutObject" in text_of(reply.body, "Message")
        assert stub.client().request("GET", "k").status == 200
        # a client that may not list gets no information about keys
        assert stub.client().request("GET", "none").code == "AccessDenied"
        assert stub.client().request("HEAD", "none").status == 403
        stub.set(deny=["kms:GenerateDataKey"])
        assert put(stub, "k") == ""
        assert put(stub, "k", x_amz_server_side_encryption="aws:kms") == "AccessDenied"

    def test_a_missing_bucket(self, stub: StubServer) -> None:
        assert replace(stub.client(), bucket="other").request("GET", "k").code == "NoSuchBucket"
        stub.set(missing_bucket=True)
        assert put(stub, "k") == "NoSuchBucket"

    def test_another_region_says_which_it_is(self, stub: StubServer) -> None:
        stub.set(region="eu-west-1")
        reply = stub.client().request("PUT", "k")
        assert (reply.status, reply.code) == (400, "AuthorizationHeaderMalformed")
        assert text_of(reply.body, "Region") == "eu-west-1"
        stub.set(wrong_region="redirect")
        reply = stub.client().request("PUT", "k")
        assert (reply.status, reply.code) == (301, "PermanentRedirect")
        assert reply.headers["x-amz-bucket-region"] == "eu-west-1"
        found = stub.client().request("HEAD", signed=False)
        assert (found.status, found.headers["x-amz-bucket-region"]) == (403, "eu-west-1")
        assert replace(stub.client(), region="eu-west-1").request("PUT", "k").status == 200


class TestFaults:
    def test_codes_come_in_the_order_they_were_given(self, stub: StubServer) -> None:
        stub.set(fail_next=["SlowDown", "", "InternalError"], only=["PutObject"], retry_after=2)
        assert stub.client().request("GET", query={"list-type": "2"}).status == 200
        reply = stub.client().request("PUT", "k")
        assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "SlowDown", "2")
        assert [put(stub, "k") for _ in range(3)] == ["", "InternalError", ""]
        assert [entry["code"] for entry in stub.log("PutObject")] == ["SlowDown", "", "InternalError", ""]

    def test_chance_is_the_same_for_the_same_seed(self, stub: StubServer) -> None:
        def codes() -> list[str]:
            stub.set(seed=7, slow_down=0.3, errors={"InternalError": 0.3})
            return [put(stub, "k") for _ in range(30)]

        first = codes()
        assert set(first) == {"", "SlowDown", "InternalError"}
        assert codes() == first

    def test_all_is_refused_while_the_service_is_away(self, stub: StubServer) -> None:
        stub.set(refuse=True)
        assert put(stub, "k") == "ServiceUnavailable"

    def test_a_lost_reply_belongs_to_a_request_that_was_done(self, stub: StubServer) -> None:
        stub.set(lose_replies=1)
        with pytest.raises(http.client.RemoteDisconnected):
            put(stub, "a")
        stub.set(reset_replies=1)
        with pytest.raises(ConnectionResetError):
            put(stub, "b", DATA)
        assert stub.objects() == {"a": b"data", "b": DATA}

    def test_a_hanging_request_is_neither_done_nor_answered(self, stub: StubServer) -> None:
        stub.set(hang=1)
        with pytest.raises(TimeoutError):
            replace(stub.client(), timeout_s=0.1).request("PUT", "k")
        wait_until(lambda: [entry["note"] for entry in stub.log()] == ["left hanging"])
        assert stub.objects() == {}

    def test_a_body_that_does_not_come_is_timed_out(self, stub: StubServer) -> None:
        stub.set(body_timeout=0.05)
        with socket.create_connection(("127.0.0.1", stub.port), timeout=10) as client:
            client.sendall(b"PUT /tdcore-tests/k HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
            assert b"RequestTimeout" in client.recv(1 << 16)

    def test_a_kept_connection_can_end_without_a_word(self, stub: StubServer) -> None:
        stub.set(requests_per_connection=1)
        with socket.create_connection(("127.0.0.1", stub.port), timeout=10) as client:
            client.sendall(b"GET /tdcore-tests/k HTTP/1.1\r\nHost: x\r\n\r\n")
            with client.makefile("rb") as file:
                assert b"Connection: keep-alive" in file.read()

    def test_settings_that_are_not_there_are_named(self, stub: StubServer) -> None:
        for wrong in ({"slow": 1}, {"latency": "x"}, {"deny": ["Put"]}, {"fail_next": ["Nope"]}):
            with pytest.raises(ValueError, match=f"{next(iter(wrong))!r}"):
                stub.set(latency=1.0, **wrong) if "latency" not in wrong else stub.set(**wrong)
        assert stub.settings()["latency"] == 0.0

    def test_the_bucket_can_be_in_the_name_of_the_host(self, stub: StubServer) -> None:
        put(stub, "a/k", b"there")
        host = f"{stub.bucket}.localhost:{stub.port}"
        headers = sign(
            stub.keys, method="GET", target="/a/k", headers={"host": host}, body=b"", region="us-east-1"
        )
        connection = stub.client().connect()
        connection.request("GET", "/a/k", headers=headers)
        assert connection.getresponse().read() == b"there"
        connection.close()
