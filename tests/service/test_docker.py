"""The steps of the Dockerfile run in a fresh Debian root, and the services start as compose.yaml says.

Docker itself is not needed. PostgreSQL and Redis are those of this machine, started with the users, passwords
and commands of the compose file. Everything is in a network of its own, with nothing but loopback.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from doubles import container
from doubles.container import Image, Machine
from doubles.nodes import _program
from doubles.postgres import binaries

ROOT = Path(__file__).resolve().parents[2]
READY_S = 60.0
BUILD_S = 900
"""The first run downloads a Debian."""
SECRETS = {
    name: secrets.token_hex(32)
    for name in ("TOOLWIRE_ADMIN_KEY", "TOOLWIRE_NODE_SECRET", "POSTGRES_PASSWORD")
}
LIMITS = {
    "cap_drop": ({"ALL"}, ["--bounding-set=-all", "--inh-caps=-all"]),
    "security_opt": ({"no-new-privileges:true"}, ["--no-new-privs"]),
}
"""What the compose file takes from the gateway, and the same as options of setpriv."""


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    file = container.composed(ROOT / "compose.yaml", SECRETS)
    found = file["services"]
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if lacking := container.missing():
        pytest.skip(lacking)
    text = (ROOT / "Dockerfile").read_text()
    image = next(rest for name, rest in container.steps(text) if name == "FROM")
    with container.machine(tmp_path_factory.mktemp("image") / "root", image) as made:
        yield made


@pytest.fixture(scope="module")
def image(machine: Machine, services: dict[str, Any]) -> Image:
    return container.build(machine, ROOT, services["toolwire"]["build"]["args"])


# --- the services of the compose file ---


def soon(ready: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    until = time.monotonic() + READY_S
    while not ready():
        assert process.poll() is None, "the service ended"
        assert time.monotonic() < until, "the service did not start"
        time.sleep(0.05)


@contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process below nsenter, which is ended by its own id, as Docker ends it."""
    process = subprocess.Popen(command, text=True, stdin=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        stop(process, signal.SIGKILL)


def stop(process: subprocess.Popen[str], number: int) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if process.poll() is None:
        for child in children.read_text().split():
            os.kill(int(child), number)
    return process.wait(READY_S)


@contextmanager
def postgres(machine: Machine, service: dict[str, Any], folder: Path) -> Iterator[None]:
    """PostgreSQL with the user, the password and the database of the compose file."""
    import psycopg

    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is missing; make test installs it where it may")
    user, database, password = (
        service["environment"][f"POSTGRES_{name}"] for name in ("USER", "DB", "PASSWORD")
    )
    (folder / "password").write_text(password)
    for path in (folder, folder / "password"):
        shutil.chown(path, "postgres", "postgres")
    drop = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    initial = [
        f"--username={user}",
        f"--pwfile={folder / 'password'}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
    ]
    subprocess.run(
        [*drop, programs / "initdb", "-D", folder / "data", *initial, "--no-sync"],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    settings = ["-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "listen_addresses=127.0.0.1"]
    command = machine.beside([*drop, str(programs / "postgres"), "-D", str(folder / "data"), *settings])
    url = f"postgresql://{user}:{password}@127.0.0.1/"

    def made() -> bool:
        try:
            with psycopg.connect(url + "postgres", autocommit=True) as connection:
                connection.execute(f'CREATE DATABASE "{database}"'.encode())
            return True
        except psycopg.OperationalError:
            return False

    with started(command, cwd=folder, stderr=subprocess.DEVNULL) as process:
        soon(lambda: machine.inside(made), process)
        yield


@contextmanager
def redis(machine: Machine, service: dict[str, Any], folder: Path) -> Iterator[None]:
    import redis as client

    program = _program("redis-server")
    if program is None:
        pytest.skip("redis-server is missing; make test installs it where it may")
    name, *words = service["command"]
    assert name == "redis-server"

    def answers() -> bool:
        try:
            return bool(client.Redis().ping())
        except client.ConnectionError:
            return False

    with started(machine.beside([program, *words]), cwd=folder, stdout=subprocess.DEVNULL) as process:
        soon(lambda: machine.inside(answers), process)
        yield


@contextmanager
def gateway(machine: Machine, image: Image, service: dict[str, Any], log: Path) -> Iterator[Any]:
    """The gateway with the environment, the files, the user and the limits of the compose file."""
    for volume in service["volumes"]:
        source, target, *mode = volume.split(":")
        inside = machine.root / target.lstrip("/")
        if source.startswith("./"):
            assert mode == ["ro"]
            inside.parent.mkdir(parents=True)
            shutil.copy(ROOT / source, inside)
        else:
            assert target in image.volumes, "the volume would belong to root"
    hosts = " ".join(["localhost", *service["depends_on"]])
    (machine.root / "etc" / "hosts").write_text(f"127.0.0.1 {hosts}\n")
    limits = []
    for key, (value, options) in LIMITS.items():
        assert set(service[key]) == value
        limits += options
    words = [*image.entrypoint, *image.command]
    command = machine.command(words, image.user, image.folder, network=False, limits=limits)
    home = re.search(rf"(?m)^{image.user}:(?:[^:]*:){{4}}([^:]*):", (machine.root / "etc/passwd").read_text())
    assert home is not None
    environment = {"HOME": home[1], **image.environment, **service["environment"]}
    with log.open("w") as out, started(command, env=environment, stdout=out, stderr=out) as process:
        yield process


# --- requests ---

URL = "http://127.0.0.1:8788"


def ask(path: str, body: dict[str, Any] | None = None, key: str = "") -> tuple[int, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers), timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, None


TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}


def calls_a_tool_over_two_requests(key: str) -> None:
    """The second request refers to the first, which is in PostgreSQL."""
    first = {"model": "demo", "input": "What is the weather in Paris?", "tools": [TOOL]}
    status, answer = ask("/v1/responses", first, key)
    assert status == 200, answer
    call = next(item for item in answer["output"] if item["type"] == "function_call")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "18 °C"}
    second = {**first, "previous_response_id": answer["id"], "input": [result]}
    status, answer = ask("/v1/responses", second, key)
    assert status == 200 and "18 °C" in json.dumps(answer["output"], ensure_ascii=False), answer


@pytest.mark.timeout(BUILD_S)
def test_the_image_serves_with_postgresql_and_redis_as_the_compose_file_says(
    machine: Machine, image: Image, services: dict[str, Any], tmp_path: Path
) -> None:
    import psycopg
    import redis as client

    service, key = services["toolwire"], SECRETS["TOOLWIRE_ADMIN_KEY"]
    log = tmp_path / "log"
    with ExitStack() as stack:
        for run in (postgres, redis):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="toolwire-")))
            stack.enter_context(run(machine, services[run.__name__], folder))
        process = stack.enter_context(gateway(machine, image, service, log))
        soon(lambda: machine.inside(ask, "/readyz")[0] == 200, process)
        assert machine.inside(ask, "/v1/models")[0] == 401
        machine.inside(calls_a_tool_over_two_requests, key)

        def execute(words: list[str]) -> str:
            """Runs a command in the container, as `docker compose exec` does."""
            command = machine.command(words, image.user, image.folder, network=False)
            environment = {**image.environment, **service["environment"]}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            return done.stdout

        execute(image.healthcheck)
        made = json.loads(execute(["toolwire", "keys", "add", "laptop", "--json"]))
        machine.inside(calls_a_tool_over_two_requests, made["key"])
        assert "postgresql" in execute(["toolwire", "doctor"]).lower()

        def stored() -> tuple[int, int]:
            url = service["environment"]["TOOLWIRE_STORE__URL"].replace("@postgres/", "@127.0.0.1/")
            with psycopg.connect(url) as connection:
                row = connection.execute("SELECT count(*) FROM responses").fetchone()
            return row[0] if row else 0, len(list(client.Redis().scan_iter()))

        responses, keys = machine.inside(stored)
        assert responses == 4 and keys >= 1
        assert stop(process, signal.SIGTERM) == 0, log.read_text()
        assert not [secret for secret in SECRETS.values() if secret in log.read_text()]


@pytest.mark.timeout(BUILD_S)
def test_a_hint_of_the_image_names_the_build_that_adds_an_extra(machine: Machine, image: Image) -> None:
    words = machine.command(["toolwire", "mcp", "--vault", "/tmp"], image.user, image.folder, network=False)
    environment = {**image.environment, "TOOLWIRE_SERVER__KEYS": '["a-key"]'}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    hint = "TOOLWIRE_EXTRAS=mcp,service docker compose up --build --detach"
    assert done.stderr.strip().endswith(hint), done.stderr


@pytest.mark.timeout(BUILD_S)
def test_without_a_key_the_image_refuses_to_serve_the_network(machine: Machine, image: Image) -> None:
    words = machine.command([*image.entrypoint, *image.command], image.user, image.folder, network=False)
    done = subprocess.run(words, env=image.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "at least one key" in done.stderr, done.stderr


def test_only_this_machine_reaches_what_the_compose_file_starts(services: dict[str, Any]) -> None:
    ports = {name: service.get("ports", []) for name, service in services.items()}
    assert ports == {"toolwire": ["127.0.0.1:8788:8788"], "postgres": [], "redis": []}


def test_a_secret_that_is_not_set_is_an_error() -> None:
    for name in SECRETS:
        with pytest.raises(AssertionError, match=f"required variable {name} is missing"):
            container.composed(ROOT / "compose.yaml", {**SECRETS, name: ""})
