"""Other gateways, with which Toolwire is compared: LiteLLM and Portkey.

pip or npm installs them into bench/work, which takes minutes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable

from bench.process import GATEWAY_CORE, WORK, Process, answers, free_port
from bench.targets import AUTHORIZATION, KEY, MESSAGES_MODEL, MODELS, Target

INSTALL_S = 900
QUESTION = {"model": "bench-plain", "messages": [{"role": "user", "content": "hi"}]}


def _litellm(upstream: int) -> Target:
    home = WORK / "litellm"
    command = home / "bin" / "litellm"
    if not command.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=INSTALL_S)
        subprocess.run(
            [str(home / "bin" / "pip"), "install", "-q", "litellm[proxy]", "uvloop"],
            check=True,
            timeout=INSTALL_S,
        )
    base = f"http://127.0.0.1:{upstream}/v1"
    models = [
        {
            "model_name": name,
            "litellm_params": {"model": f"openai/{name}", "api_base": base, "api_key": "sk-none"},
        }
        for name in MODELS
    ]
    by_chat = {"model": "hosted_vllm/bench-paced", "api_base": base, "api_key": "sk-none"}
    models.append({"model_name": MESSAGES_MODEL, "litellm_params": by_chat})
    settings = {"telemetry": False, "drop_params": True, "num_retries": 0, "request_timeout": 600}
    config = {
        "model_list": models,
        "litellm_settings": settings,
        "general_settings": {"master_key": KEY, "disable_spend_logs": True},
    }
    path = WORK / "litellm.json"
    path.write_text(json.dumps(config))  # JSON is valid YAML
    port = free_port()
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"}
    words = [
        str(command),
        "--config",
        str(path),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--num_workers",
        "1",
        "--telemetry",
        "False",
    ]
    return _started(
        "litellm", Process(words, core=GATEWAY_CORE, log="litellm", env=env, cwd=WORK), port, AUTHORIZATION
    )


def _portkey(upstream: int) -> Target:
    home = WORK / "portkey"
    entry = home / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    if not entry.exists():
        home.mkdir(parents=True, exist_ok=True)
        # The gateway's streaming needs an older server adapter than the one it requires.
        wanted = {
            "name": "portkey",
            "dependencies": {"@portkey-ai/gateway": "1.15.2"},
            "overrides": {"@hono/node-server": "1.13.8"},
        }
        (home / "package.json").write_text(json.dumps(wanted))
        subprocess.run(["npm", "install", "--silent"], cwd=home, check=True, timeout=INSTALL_S)
    port = free_port()
    env = {"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost"}
    process = Process(
        ["node", str(entry), f"--port={port}", "--headless"],
        core=GATEWAY_CORE,
        log="portkey",
        env=env,
        cwd=home,
    )
    headers = {
        **AUTHORIZATION,
        "x-portkey-provider": "openai",
        "x-portkey-custom-host": f"http://127.0.0.1:{upstream}/v1",
    }
    return _started("portkey", process, port, headers)


def _started(name: str, process: Process, port: int, headers: dict[str, str]) -> Target:
    try:
        cold = process.wait_until(lambda: answers(port, "/v1/chat/completions", headers, QUESTION), 90)
    except RuntimeError:
        process.stop()
        raise
    return Target(name, port, process, headers, cold)


STARTS: dict[str, Callable[[int], Target]] = {"litellm": _litellm, "portkey": _portkey}


def version_of(name: str) -> str:
    """Returns the gateway's name and version."""
    try:
        if name == "litellm":
            found = next((WORK / "litellm" / "lib").glob("python*/site-packages/litellm-*.dist-info")).name
            return f"LiteLLM {found.removeprefix('litellm-').removesuffix('.dist-info')}"
        if name == "portkey":
            package = json.loads(
                (WORK / "portkey" / "node_modules" / "@portkey-ai" / "gateway" / "package.json").read_text()
            )
            return (
                f"Portkey gateway {package['version']} (with an older @hono/node-server, because streaming "
                "does not work in the published version)"
            )
        if name == "nginx":
            output = subprocess.run(
                [shutil.which("nginx") or "/usr/sbin/nginx", "-v"],
                capture_output=True,
                text=True,
                check=False,
            ).stderr
            return "nginx " + output.strip().rpartition("/")[2]
    except (OSError, StopIteration, ValueError, KeyError):
        pass
    return ""
