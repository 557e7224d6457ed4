"""The gateways that are measured. Each has its own port. All have the same upstream (model server)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.process import GATEWAY_CORE, HERE, LOAD_CORE, WORK, Process, answers, free_port

KEY = "sk-bench-0123456789"
MODELS = ("bench-plain", "bench-paced", "bench-burst", "bench-native-paced", "bench-written-paced")
MESSAGES_MODEL = "messages-paced"
"""`bench-paced` for clients of the Messages API.

It has its own name, because LiteLLM needs another route to serve these clients from chat completions.
"""
EMULATED = {"emulated-paced": "bench-paced", "emulated-written-paced": "bench-written-paced"}
"""Toolwire's models with emulated tools, and the upstream's model for each."""
AUTHORIZATION = {"Authorization": f"Bearer {KEY}"}
ALL_CORES = GATEWAY_CORE | LOAD_CORE


@dataclass(slots=True)
class Target:
    """A running server. `process` is None for the upstream, whose CPU time and memory are not measured."""

    name: str
    port: int
    process: Process | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cold_s: float = 0.0
    idle_mb: float = 0.0

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()


def toolwire_config(upstream: int, home: Path) -> Path:
    """Writes Toolwire's settings file. Keys, logs and metrics are on, as in real use."""
    lines = ["[server]", f'keys = ["{KEY}"]', "[store]", f'url = "sqlite:///{home / "bench.db"}"']
    others = {**EMULATED, MESSAGES_MODEL: "bench-paced"}
    for name in (*MODELS, *others):
        lines += [
            f"[models.{name}]",
            'backend = "openai"',
            f'base_url = "http://127.0.0.1:{upstream}/v1"',
            f'model = "{others.get(name, name)}"',
        ]
        lines.append(f'tools = "{"emulated" if name in EMULATED else "native"}"')
    path = home / "toolwire.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def start_toolwire(upstream: int, name: str = "toolwire", source: Path | None = None) -> Target:
    """Starts Toolwire. `source` is the `src` folder of another version, which needs another `name`."""
    home = WORK / name
    shutil.rmtree(home, ignore_errors=True)  # an earlier journal would be loaded and count as memory
    home.mkdir(parents=True)
    env = {} if source is None else {"PYTHONPATH": str(source)}
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "toolwire",
        "serve",
        "--config",
        str(toolwire_config(upstream, home)),
        "--port",
        str(port),
        "--log-level",
        "info",
    ]
    process = Process(command, core=GATEWAY_CORE, log=name, env=env)
    try:
        cold = process.wait_until(lambda: answers(port, "/readyz"))
    except RuntimeError:
        process.stop()
        raise
    return Target(name, port, process, AUTHORIZATION, cold)


def start_relay(upstream: int) -> Target:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--loop",
        "uvloop",
        "--http",
        "httptools",
    ]
    command += ["--no-access-log", "--log-level", "error", "bench.relay:app"]
    process = Process(
        command,
        core=GATEWAY_CORE,
        log="relay",
        env={"UPSTREAM": f"http://127.0.0.1:{upstream}"},
        cwd=HERE.parent,
    )
    try:
        cold = process.wait_until(lambda: answers(port, "/v1/models"))
    except RuntimeError:
        process.stop()
        raise
    return Target("relay", port, process, AUTHORIZATION, cold)


def codex_options(provider: int, binary: Path) -> dict[str, Any]:
    """Returns the settings of the Codex model. Toolwire and the direct client share settings and home."""
    return {
        "bin": str(binary),
        "home": str(WORK / "codex-home"),
        "model": "gpt-5.5",
        "provider": {"base_url": f"http://127.0.0.1:{provider}/v1", "name": "bench"},
    }


def start_toolwire_codex(provider: int, binary: Path) -> Target:
    """Starts Toolwire in front of Codex, on all cores, because Codex has many threads."""
    lines = [
        "[server]",
        f'keys = ["{KEY}"]',
        "[store]",
        f'url = "sqlite:///{WORK / "codex.db"}"',
        "[models.codex]",
        'backend = "codex"',
    ]
    for key, value in codex_options(provider, binary).items():
        written = (
            "{ " + ", ".join(f'{name} = "{word}"' for name, word in value.items()) + " }"
            if isinstance(value, dict)
            else f'"{value}"'
        )
        lines.append(f"{key} = {written}")
    path = WORK / "toolwire-codex.toml"
    path.write_text("\n".join(lines) + "\n")
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "toolwire",
        "serve",
        "--config",
        str(path),
        "--port",
        str(port),
        "--log-level",
        "info",
    ]
    process = Process(command, core=ALL_CORES, log="toolwire-codex")
    try:
        cold = process.wait_until(lambda: answers(port, "/readyz"))
    except RuntimeError:
        process.stop()
        raise
    return Target("gateway", port, process, AUTHORIZATION, cold)


NGINX = """
daemon off; worker_processes 1; pid nginx.pid; error_log nginx.err;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  keepalive_requests 1000000;
  upstream up {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024; client_max_body_size 64m;
    proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    location / {{ proxy_pass http://up; }}
  }}
}}
"""


def start_nginx(upstream: int) -> Target:
    home, command = WORK / "nginx", shutil.which("nginx") or "/usr/sbin/nginx"
    if not Path(command).exists():
        raise RuntimeError("nginx is not installed")
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    (home / "nginx.conf").write_text(NGINX.format(upstream=upstream, port=port))
    process = Process([command, "-p", str(home), "-c", "nginx.conf"], core=GATEWAY_CORE, log="nginx")
    try:
        cold = process.wait_until(lambda: answers(port, "/v1/models"))
    except RuntimeError:
        process.stop()
        raise
    return Target("nginx", port, process, AUTHORIZATION, cold)


STARTS: dict[str, Callable[[int], Target]] = {
    "toolwire": start_toolwire,
    "relay": start_relay,
    "nginx": start_nginx,
}
TITLES = {
    "upstream": "the upstream alone",
    "toolwire": "**Toolwire**",
    "relay": "byte relay (uvicorn, aiohttp)",
    "nginx": "nginx",
    "litellm": "LiteLLM proxy",
    "portkey": "Portkey gateway",
}
