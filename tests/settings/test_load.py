"""Settings: their sources and precedence, and the messages for invalid ones."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from toolwire.backends import registry
from toolwire.settings.load import load
from toolwire.settings.types import SECTIONS, ConfigError, Settings, is_loopback, print_config


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests must not read a toolwire.toml of the checkout."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def from_toml(text: str, environ: dict[str, str] | None = None, **overrides: Any) -> Settings:
    Path("settings.toml").write_text(text)
    return load("settings.toml", environ or {}, overrides)


def error_of(text: str = "", environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        from_toml(text, environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- sources


def test_nothing_configured_serves_the_embedded_default_on_loopback() -> None:
    settings = load(None, {}, {})
    assert [(model.id, model.backend) for model in settings.models] == [("demo", "scripted")]
    assert (settings.server.host, settings.server.port, settings.server.keys) == ("127.0.0.1", 8788, ())


def test_the_file_is_looked_for_in_four_places_in_order(tmp_path: Path) -> None:
    def write(path: Path, port: int) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[server]\nport = {port}\n")
        return str(path)

    home = tmp_path / "home"
    environ = {"HOME": str(home)}
    found = []
    write(home / ".config" / "toolwire" / "toolwire.toml", 4)
    found.append(load(None, environ, {}).server.port)
    write(tmp_path / "xdg" / "toolwire" / "toolwire.toml", 5)
    found.append(load(None, {**environ, "XDG_CONFIG_HOME": str(tmp_path / "xdg")}, {}).server.port)
    write(Path("toolwire.toml"), 3)
    found.append(load(None, environ, {}).server.port)
    environ["TOOLWIRE_CONFIG"] = write(tmp_path / "named.toml", 2)
    found.append(load(None, environ, {}).server.port)
    found.append(load(write(tmp_path / "given.toml", 1), environ, {}).server.port)
    assert found == [4, 5, 3, 2, 1]


@pytest.mark.parametrize(
    ("path", "environ", "by"),
    [("gone.toml", {}, "--config"), (None, {"TOOLWIRE_CONFIG": "gone.toml"}, "TOOLWIRE_CONFIG")],
)
def test_a_named_file_must_exist(path: str | None, environ: dict[str, str], by: str) -> None:
    with pytest.raises(ConfigError, match=rf"{by}.*gone\.toml"):
        load(path, environ, {})


def test_command_line_beats_environment_beats_seed_flags_beats_file() -> None:
    text = "[server]\nport = 1\n"
    assert from_toml(text).server.port == 1
    assert from_toml(text, {"PORT": "2"}).server.port == 2
    assert from_toml(text, {"PORT": "2", "TOOLWIRE_SERVER__PORT": "3"}).server.port == 3
    assert from_toml(text, {"PORT": "2", "TOOLWIRE_SERVER__PORT": "3"}, **{"server.port": 4}).server.port == 4


@pytest.mark.parametrize(
    ("section", "key"), [(section, field.name) for section, cls in SECTIONS.items() for field in fields(cls)]
)
def test_every_key_has_an_environment_name(section: str, key: str) -> None:
    default = getattr(SECTIONS[section](), key)
    samples: dict[type, tuple[str, Any]] = {
        int: ("7", 7),
        float: ("7.5", 7.5),
        tuple: ('["a"]', ("a",)),
        str: ("text", "text"),
    }
    text, value = samples.get(type(default), (str(not default), not default))
    if key in (
        "discover",
        "stop_after",
        "suppress_tail",
        "unknown_tool",
        "arguments",
        "output_mode",
        "contents",
        "command_line",
    ):
        text = value = {
            "unknown_tool": "error",
            "arguments": "eager",
            "output_mode": "obsidian-xml",
            "command_line": "open",
        }.get(key, "off")
    environ = {"TOOLWIRE_SERVER__KEYS": '["k"]', f"TOOLWIRE_{section}__{key}".upper(): text}
    assert getattr(getattr(load(None, environ, {}), section), key) == value != default


def test_the_whole_documented_file_is_accepted() -> None:
    settings = from_toml(
        """
        [server]
        host = "127.0.0.1"
        port = 8788
        keys = ["env:TOOLWIRE_API_KEY"]
        workers = 1
        commit_after_s = 10
        drain_s = 30
        [models.qwen]
        backend = "openai"
        base_url = "http://127.0.0.1:11434/v1"
        api_key = "env:UPSTREAM_KEY"
        model = "qwen3:4b"
        tools = "auto"
        dialects = ["sentinel", "hermes", "qwen_xml"]
        [models.demo]
        backend = "scripted"
        script = ""
        [tools]
        stop_after = "auto"
        stop_grace_ms = 0
        suppress_tail = "auto"
        output_mode = "openai-json"
        [parked]
        ttl_s = 600
        max_per_key = 64
        [journal]
        contents = "memory"
        max_mb = 256
        [vault]
        root = "~/notes"
        enabled = false
        [store]
        url = "sqlite:///~/.local/share/toolwire/toolwire.db"
        redis = ""
        """,
        {"TOOLWIRE_API_KEY": "sk-local", "UPSTREAM_KEY": "sk-upstream"},
    )
    assert settings.server.keys == ("sk-local",)
    assert [model.id for model in settings.models] == ["qwen", "demo"]
    assert settings.models[0].options["api_key"] == "sk-upstream"
    assert settings.server.commit_after_s == 10.0 and isinstance(settings.server.commit_after_s, float)


# --- models

QWEN = '[models.qwen]\nbackend = "openai"\nbase_url = "http://file/v1"\nmodel = "a"\n'


def test_a_table_in_the_environment_replaces_the_files_table() -> None:
    settings = from_toml(QWEN, {"TOOLWIRE_MODELS": '{"tiny": {"backend": "scripted"}}'})
    assert [model.id for model in settings.models] == ["tiny"]


def test_one_option_of_one_model_can_be_set_from_the_environment() -> None:
    settings = from_toml(
        QWEN,
        {
            "TOOLWIRE_MODELS__QWEN__BASE_URL": "http://environment/v1",
            "TOOLWIRE_MODELS__QWEN__CUMULATIVE_ARGUMENTS": "true",
        },
    )
    assert settings.models[0].options == {
        "base_url": "http://environment/v1",
        "model": "a",
        "cumulative_arguments": True,
    }


def test_a_model_can_be_configured_by_the_environment_alone() -> None:
    settings = load(
        None,
        {"TOOLWIRE_MODELS__QWEN__BACKEND": "openai", "TOOLWIRE_MODELS__QWEN__BASE_URL": "http://h/v1"},
        {},
    )
    assert [(model.id, model.backend) for model in settings.models] == [("qwen", "openai")]
    settings = from_toml(QWEN, {"TOOLWIRE_MODELS__OTHER": '{"backend": "scripted"}'})
    assert [model.id for model in settings.models] == ["qwen", "other"]


def test_an_environment_name_finds_a_model_whose_id_has_other_characters() -> None:
    text = '[models."acme/qwen-3"]\nbackend = "openai"\nbase_url = "http://h/v1"\n'
    settings = from_toml(text, {"TOOLWIRE_MODELS__ACME_QWEN_3__MODEL": "inner"})
    assert [(model.id, model.options["model"]) for model in settings.models] == [("acme/qwen-3", "inner")]


def test_text_that_looks_like_a_number_stays_text_if_the_option_is_text() -> None:
    settings = from_toml(
        QWEN, {"TOOLWIRE_MODELS__QWEN__API_KEY": "12345", "TOOLWIRE_MODELS__QWEN__MODEL": "true"}
    )
    assert (settings.models[0].options["api_key"], settings.models[0].options["model"]) == ("12345", "true")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('base_url = "x"\n', ["backend is missing", "ollama"]),
        ('backend = "opnai"\n', ["opnai", "did you mean openai"]),
        ('backend = "olama"\n', ["olama", "did you mean ollama"]),
        ("backend = 3\n", ["backend", "string"]),
        ('backend = "openai"\nbase_ulr = "http://h/v1"\n', ["base_ulr", "base_url"]),
        ('backend = "openai"\nbase_url = 3\n', ["base_url", "string"]),
        ('backend = "openai"\napi_key = "env:NOT_SET"\n', ["api_key", "NOT_SET is not set"]),
        ('backend = "openai"\napi_key = "file:/no/key"\n', ["api_key", "/no/key", "No such file"]),
        ('backend = "openai"\nheaders = { x = "env:NOT_SET" }\n', ["headers.x", "NOT_SET is not set"]),
        ('backend = "openrouter"\n', ["OPENROUTER_API_KEY", "api_key"]),
        ('backend = "anthropic"\n', ["ANTHROPIC_API_KEY"]),
        ('backend = "scripted"\nfallback = "good"\n', ["fallback", "list of strings"]),
        ('backend = "scripted"\nfallback = ["god"]\n', ["fallback", "god", "did you mean good"]),
        ('backend = "scripted"\nfallback = ["bad"]\n', ["fallback", "leads back to bad"]),
        ("", ["backend is missing"]),
    ],
)
def test_a_mistake_in_one_model_makes_only_that_model_unavailable(text: str, said: list[str]) -> None:
    bad, good = from_toml(f'[models.bad]\n{text}[models.good]\nbackend = "scripted"\n').models
    assert all(word in bad.problem for word in said) and "\n" not in bad.problem, bad.problem
    assert (good.id, good.problem) == ("good", "") and bad.where == "settings.toml"


def test_a_model_that_is_no_table_is_unavailable() -> None:
    bad, good = from_toml('[models]\nbad = 3\n[models.good]\nbackend = "scripted"\n').models
    assert "expected a table [models.bad], got 3" in bad.problem and not good.problem


def test_models_that_fall_back_to_each_other_are_unavailable() -> None:
    text = '[models.a]\nbackend = "scripted"\nfallback = ["b"]\n[models.b]\nbackend = "scripted"\n'
    a, b, c = from_toml(
        text + 'fallback = ["a"]\n[models.c]\nbackend = "scripted"\nfallback = ["a"]\n'
    ).models
    assert a.problem == "fallback: a → b → a leads back to a; remove one of them"
    assert b.problem == "fallback: b → a → b leads back to b; remove one of them" and not c.problem


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ollama", ("openai", {"profile": "ollama", "base_url": "http://127.0.0.1:11434/v1"})),
        ("lmstudio", ("openai", {"profile": "lmstudio", "base_url": "http://127.0.0.1:1234/v1"})),
        ("vllm", ("openai", {"profile": "vllm", "base_url": "http://127.0.0.1:8000/v1"})),
        ("llamacpp", ("openai", {"profile": "llamacpp", "base_url": "http://127.0.0.1:8080/v1"})),
        ("openrouter", ("openai", {"base_url": "https://openrouter.ai/api/v1", "api_key": "or-key"})),
        ("anthropic", ("hosted", {"model": "anthropic:m", "api_key": "ant-key"})),
        ("google", ("hosted", {"model": "google:m", "api_key": "goo-key"})),
    ],
)
def test_a_shorthand_means_its_backend_with_profile_address_and_key(
    name: str, meant: tuple[str, dict[str, str]]
) -> None:
    keys = {"OPENROUTER_API_KEY": "or-key", "ANTHROPIC_API_KEY": "ant-key", "GOOGLE_API_KEY": "goo-key"}
    (model,) = from_toml(f'[models.x]\nbackend = "{name}"\nmodel = "m"\n', keys).models
    options = registry.check(model.backend, model.options)
    assert not model.problem and model.backend == meant[0]
    assert {key: getattr(options, key) for key in meant[1]} == meant[1]
    assert not any(key in print_config(Settings(models=(model,))) for key in keys.values())


def test_a_shorthand_keeps_what_is_set_and_names_the_model_by_its_id() -> None:
    text = (
        '[models.qwen3]\nbackend = "ollama"\n[models.far]\nbackend = "ollama"\nbase_url = "http://h:1/v1"\n'
    )
    text += '[models.claude-haiku-4-5]\nbackend = "anthropic"\napi_key = "mine"\n'
    text += '[models.all]\nbackend = "google"\nmodel = "*"\napi_key = "k"\n'
    near, far, claude, every = from_toml(text, {"OLLAMA_HOST": "10.0.0.5"}).models
    assert near.options["base_url"] == "http://10.0.0.5:11434/v1"
    assert far.options["base_url"] == "http://h:1/v1"
    assert claude.options == {"api_key": "mine", "model": "anthropic:claude-haiku-4-5"}
    assert registry.is_source(every.backend, every.options)


def test_a_list_collects_every_mistake_and_the_rest_is_loaded() -> None:
    Path("settings.toml").write_text(
        '[server]\nport = "x"\nprot = 1\nhost = "127.0.0.2"\n[servre]\n[aliases]\na = "none"\n'
    )
    problems: list[str] = []
    settings = load("settings.toml", {"TOOLWIRE_TOOLS__DEDUP": "perhaps"}, {}, problems=problems)
    assert (settings.server.host, settings.server.port) == ("127.0.0.2", 8788)
    said = ["server.port", "server.prot", "servre", "aliases.a", "TOOLWIRE_TOOLS__DEDUP"]
    assert len(problems) == 5 and all(any(word in one for one in problems) for word in said), problems


# --- errors


@pytest.mark.parametrize(
    ("text", "environ", "said"),
    [
        ("[server]\nprot = 1\n", {}, ["settings.toml", "unknown key server.prot", "server.port"]),
        ("[servre]\nport = 1\n", {}, ["settings.toml", "unknown section servre", "server"]),
        ("server = 1\n", {}, ["settings.toml", "server", "table"]),
        ("port = 1\n", {}, ["settings.toml", "port", "below [server]"]),
        ('[server]\nport = "8788"\n', {}, ["settings.toml", "server.port", "integer", '"8788"']),
        ("[server]\nport = true\n", {}, ["server.port", "integer"]),
        ("[server]\nport = 70000\n", {}, ["server.port", "65535"]),
        ("[server]\nport = -1\n", {}, ["server.port", "0 to 65535"]),
        ("[server]\ndrain_s = nan\n", {}, ["server.drain_s", "number"]),
        ("[server]\ndrain_s = inf\n", {}, ["server.drain_s", "number"]),
        ('[server]\norigins = "http://a"\n', {}, ["server.origins", "list of strings"]),
        ('[tools]\nstop_after = "soon"\n', {}, ["tools.stop_after", "burst", '"soon"']),
        ("[tools]\ndedup = 1\n", {}, ["tools.dedup", "true or false"]),
        ("[server\n", {}, ["settings.toml", "not valid TOML", "line 1"]),
        ("", {"TOOLWIRE_SERVER__PROT": "1"}, ["TOOLWIRE_SERVER__PROT", "server.port"]),
        ("", {"TOOLWIRE_SERVR__PORT": "1"}, ["TOOLWIRE_SERVR__PORT", "server"]),
        ("", {"TOOLWIRE_SERVER__PORT": "many"}, ["TOOLWIRE_SERVER__PORT", "integer", '"many"']),
        ("", {"TOOLWIRE_SERVER__ORIGINS": "http://a"}, ["TOOLWIRE_SERVER__ORIGINS", "JSON list"]),
        ("", {"TOOLWIRE_MODELS": "qwen"}, ["TOOLWIRE_MODELS", "JSON object"]),
        ("", {"TOOLWIRE_SERVER__PORT__X": "1"}, ["TOOLWIRE_SERVER__PORT__X", "TOOLWIRE_SECTION__KEY"]),
        ("", {"PROXY_TOOL_BLOCK_DEDUP": "perhaps"}, ["PROXY_TOOL_BLOCK_DEDUP", "one of true"]),
        ("", {"PROXY_TOOL_BLOCK_MAX": "lots"}, ["PROXY_TOOL_BLOCK_MAX", "tools.max_calls", "integer"]),
    ],
)
def test_a_wrong_setting_is_one_line_that_says_where_and_what(
    text: str, environ: dict[str, str], said: list[str]
) -> None:
    message = error_of(text, environ)
    assert all(word in message for word in said), message


def test_other_variables_with_the_prefix_are_ignored() -> None:
    load(None, {"TOOLWIRE_API_KEY": "x", "TOOLWIRE_WHATEVER": "y"}, {})


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.com"])
def test_another_address_than_loopback_needs_a_key(host: str) -> None:
    assert "server.keys" in error_of(f'[server]\nhost = "{host}"\n')
    assert from_toml(f'[server]\nhost = "{host}"\nkeys = ["k"]\n').server.host == host


def test_the_star_origin_needs_a_key() -> None:
    assert "server.origins" in error_of('[server]\norigins = ["*"]\n')
    assert from_toml('[server]\norigins = ["*"]\nkeys = ["k"]\n').server.origins == ("*",)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("[::1]", True),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_loopback_is_known_by_name_and_address(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


# --- secrets


def test_secrets_are_read_from_the_environment_and_from_files(tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text("from-file\n")
    Path("beside.txt").write_text("beside the settings\n")
    settings = from_toml(
        f'[server]\nkeys = ["env:A", "file:{tmp_path}/key.txt", "file:beside.txt", "plain"]\n',
        {"A": "from-environment"},
    )
    assert settings.server.keys == ("from-environment", "from-file", "beside the settings", "plain")


@pytest.mark.parametrize(
    ("reference", "environ", "said"),
    [
        ("env:MISSING", {}, ["server.keys", "MISSING", "not set"]),
        ("env:EMPTY", {"EMPTY": ""}, ["server.keys", "EMPTY", "empty"]),
        ("file:/no/such/file", {}, ["server.keys", "/no/such/file", "No such file"]),
        ("", {}, ["server.keys", "empty"]),
    ],
)
def test_a_missing_secret_is_an_error(reference: str, environ: dict[str, str], said: list[str]) -> None:
    message = error_of(f'[server]\nkeys = ["{reference}"]\n', environ)
    assert all(word in message for word in said), message


def test_a_key_is_never_part_of_a_message() -> None:
    assert "sk-secret" not in error_of('[server]\nkeys = "sk-secret"\n')
    assert "sk-secret" not in error_of("", {"TOOLWIRE_SERVER__KEYS": "sk-secret"})


def test_the_printed_settings_are_toml_without_a_secret() -> None:
    settings = from_toml(
        '[server]\nkeys = ["sk-server"]\n[store]\nredis = "redis://user:sk-redis@host/0"\n'
        '[models."a/b"]\nbackend = "openai"\nbase_url = "http://h/v1"\napi_key = "sk-literal"\n'
        'headers = { "X-Team" = "env:TEAM", "Authorization" = "sk-header" }\n',
        {"TEAM": "sk-team"},
    )
    text = print_config(settings)
    assert "sk-" not in text
    shown = tomllib.loads(text)
    assert shown["server"]["port"] == 8788 and shown["server"]["keys"] == ["***"]
    assert shown["models"]["a/b"] == {
        "backend": "openai",
        "base_url": "http://h/v1",
        "api_key": "***",
        "headers": {"X-Team": "***", "Authorization": "***"},
    }
    assert set(shown) == {*SECTIONS, "models"}


def test_printed_settings_load_again_to_the_same_settings() -> None:
    text = (
        '[tools]\ndelimiter = "a\\n\\"b\\" \\u007f é"\n[models.demo]\nbackend = "scripted"\n'
        'script = "say x"\n'
    )
    text += "[parked]\nttl_s = 0.5\n"
    settings = from_toml(text)
    assert from_toml(print_config(settings)) == settings


# --- flags of older proxies


@pytest.mark.parametrize(
    ("environ", "section", "key", "value"),
    [
        ({"PROXY_STOP_AFTER_TOOLS": "true"}, "tools", "stop_after", "burst"),
        ({"PROXY_STOP_AFTER_TOOLS": "false"}, "tools", "stop_after", "off"),
        (
            {"PROXY_STOP_AFTER_TOOLS": "true", "PROXY_STOP_AFTER_TOOLS_MODE": "first"},
            "tools",
            "stop_after",
            "first",
        ),
        (
            {"PROXY_STOP_AFTER_TOOLS": "false", "PROXY_STOP_AFTER_TOOLS_MODE": "first"},
            "tools",
            "stop_after",
            "off",
        ),
        ({"PROXY_STOP_AFTER_TOOLS_MODE": "first"}, "tools", "stop_after", "first"),
        ({"PROXY_STOP_AFTER_TOOLS_GRACE_MS": "300"}, "tools", "stop_grace_ms", 300),
        ({"PROXY_SUPPRESS_TAIL_AFTER_TOOLS": "1"}, "tools", "suppress_tail", "on"),
        ({"PROXY_SUPPRESS_TAIL_AFTER_TOOLS": "no"}, "tools", "suppress_tail", "off"),
        ({"PROXY_ENABLE_PARALLEL_TOOL_CALLS": "false"}, "tools", "parallel", False),
        ({"PROXY_TOOL_BLOCK_MAX": "1"}, "tools", "max_calls", 1),
        ({"PROXY_TOOL_BLOCK_DEDUP": "yes"}, "tools", "dedup", True),
        ({"PROXY_TOOL_BLOCK_DELIMITER": "\\n---\\n"}, "tools", "delimiter", "\n---\n"),
        ({"PROXY_TOOL_BLOCK_DELIMITER": "true"}, "tools", "delimiter", "\n\n"),
        ({"PROXY_OUTPUT_MODE": "obsidian-xml"}, "tools", "output_mode", "obsidian-xml"),
        ({"PROXY_API_KEY": "sk-1"}, "server", "keys", ("sk-1",)),
        ({"PROXY_HOST": "0.0.0.0", "PROXY_API_KEY": "k"}, "server", "host", "0.0.0.0"),
        ({"PORT": "11435"}, "server", "port", 11435),
        ({"PROXY_TOOL_BLOCK_MAX": ""}, "tools", "max_calls", 0),
        ({"CODEX_BIN": "/usr/bin/codex", "CURSOR_API_KEY": "x"}, "server", "port", 8788),
    ],
)
def test_the_flags_of_older_proxies_keep_their_meaning(
    environ: dict[str, str], section: str, key: str, value: object
) -> None:
    assert getattr(getattr(load(None, environ, {}), section), key) == value


def test_codexs_own_variables_reach_codex_models_and_no_others() -> None:
    text = '[models.codex]\nbackend = "codex"\nmodel = "from-file"\n[models.demo]\nbackend = "scripted"\n'
    environ = {"CODEX_BIN": "/opt/codex", "CODEX_MODEL": "gpt-5.5", "CODEX_HOME": "/home/me/.codex"}
    codex, demo = from_toml(text, environ).models
    assert (
        codex.options == {"model": "gpt-5.5", "bin": "/opt/codex", "home": "/home/me/.codex"}
        and demo.options == {}
    )
    codex, _ = from_toml(text, {**environ, "TOOLWIRE_MODELS__CODEX__MODEL": "mine"}).models
    assert codex.options["model"] == "mine"


# --- aliases

ALIASED = '[models.best]\nbackend = "scripted"\n[aliases]\n"claude-*" = "best"\nfast = "best"\n'


def test_aliases_keep_their_order_and_are_printed() -> None:
    settings = from_toml(ALIASED)
    assert settings.aliases == (("claude-*", "best"), ("fast", "best"))
    assert from_toml(print_config(settings)).aliases == settings.aliases
    assert from_toml(ALIASED, {"TOOLWIRE_ALIASES": '{"slow": "best"}'}).aliases[-1] == ("slow", "best")


@pytest.mark.parametrize("target", ['"other"', "3"])
def test_an_alias_of_no_model_is_an_error(target: str) -> None:
    said = error_of(f'[models.best]\nbackend = "scripted"\n[aliases]\nfast = {target}\n')
    assert said.startswith("settings.toml: aliases.fast:")
