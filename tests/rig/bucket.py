"""An S3 server of the tests (moto), in a thread of this process, with one bucket: the store behind `s3://`."""

import socket
from types import TracebackType
from typing import Any, Self

import httpx2
from moto.server import ThreadedMotoServer
from obstore.store import S3Store

BUCKET = "jobgate-tests"
REGION = "us-east-1"
ACCESS = {"AWS_ACCESS_KEY_ID": "test-access", "AWS_SECRET_ACCESS_KEY": "canary-bucket-7710", "AWS_REGION": REGION}


class Bucket:
    """Use as a context manager. `settings` are what a stack takes to keep its blobs here."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)

    @property
    def settings(self) -> dict[str, str]:
        return {
            **ACCESS,
            "JOBGATE_BLOBS_URL": f"s3://{BUCKET}/jobs",
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
        }

    def objects(self) -> list[str]:
        """The key of every one that is there."""
        store = S3Store(
            BUCKET,
            endpoint=self.url,
            region=REGION,
            access_key_id=ACCESS["AWS_ACCESS_KEY_ID"],
            secret_access_key=ACCESS["AWS_SECRET_ACCESS_KEY"],
            client_options={"allow_http": True},
        )
        listing: Any = store.list()  # pyright: ignore[reportUnknownMemberType]  # arrow's
        return sorted(blob["path"] for chunk in listing for blob in chunk)

    def __enter__(self) -> Self:
        self._server.start()
        httpx2.put(f"{self.url}/{BUCKET}").raise_for_status()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()
