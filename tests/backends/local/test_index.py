"""Wheels come from the index that the person configured for pip or uv; credentials reach only that index."""

from __future__ import annotations

import os
import ssl
import sys
import zipfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from doubles.package_index import PARTS, PIECES, FakeIndex, fake_index, wheel
from toolwire.backends.local.index import TIMEOUT_S, Index, IndexProblem, Source, pips_index

PART = PARTS[0]


@pytest.fixture
def index() -> Iterator[FakeIndex]:
    with fake_index() as index:
        yield index


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment without settings; this machine's own files are not read."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    return {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "xdg"), "PIP_CONFIG_FILE": os.devnull}


def fetched(source: Source) -> bytes:
    with Index(source).wheel(PART.distribution, PART.wheel) as blocks:
        return b"".join(blocks)


def test_without_settings_it_is_pips_own_index(home: dict[str, str]) -> None:
    from pip._internal.models.index import PyPI

    found = Source.configured(home)
    assert (found.indexes, found.links, found.timeout_s) == ((PyPI.simple_url,), (), TIMEOUT_S)


def test_without_pip_it_is_the_index_of_the_pip_that_python_bundles(
    home: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_bundled").mkdir()
    with zipfile.ZipFile(tmp_path / "_bundled" / "pip-99.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            "pip/_internal/models/index.py", 'PyPI = PackageIndex(\n    "https://index.example/", x)'
        )
    bundle = ModuleSpec("ensurepip", None, is_package=True)
    bundle.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr("importlib.util.find_spec", {"ensurepip": bundle}.get)
    assert Source.configured(home).indexes == ("https://index.example/simple",)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: None)
    assert Source.configured(home).indexes == ()
    with pytest.raises(IndexProblem, match="no index is configured: set UV_DEFAULT_INDEX"):
        fetched(Source.configured(home))


@pytest.mark.parametrize(
    ("given", "indexes"),
    [
        ({"PIP_INDEX_URL": "https://a/simple"}, ("https://a/simple",)),
        ({"UV_INDEX_URL": "https://u/simple"}, ("https://u/simple",)),
        ({"UV_DEFAULT_INDEX": "https://d/simple", "UV_INDEX_URL": "https://u"}, ("https://d/simple",)),
        ({"UV_DEFAULT_INDEX": "corp=https://d/simple"}, ("https://d/simple",)),
        ({"UV_DEFAULT_INDEX": "https://d/simple?token=x"}, ("https://d/simple?token=x",)),
        (
            {"PIP_EXTRA_INDEX_URL": "https://b https://c", "UV_INDEX": "team=https://e"},
            (pips_index(), "https://e", "https://b", "https://c"),
        ),
        ({"PIP_NO_INDEX": "1", "PIP_INDEX_URL": "https://a"}, ()),
    ],
)
def test_variables_of_pip_and_uv_name_the_index(
    home: dict[str, str], given: dict[str, str], indexes: tuple[str, ...]
) -> None:
    assert Source.configured({**home, **given}).indexes == indexes


def test_pips_files_are_read_in_pips_order(home: dict[str, str], tmp_path: Path) -> None:
    del home["PIP_CONFIG_FILE"]
    user, site = tmp_path / ".config/pip/pip.conf", tmp_path / "prefix/pip.conf"
    for file in (user, site):
        file.parent.mkdir(parents=True)
    (tmp_path / "xdg/pip").mkdir(parents=True)
    (tmp_path / "xdg/pip/pip.conf").write_text("[global]\nindex-url = https://lowest\nproxy = box:3128\n")
    user.write_text(
        "[global]\nindex-url = https://user/simple\ntimeout = 7\n"
        "[install]\nextra_index_url =\n  https://one\n  https://two\n"
    )
    found = Source.configured(home)
    assert found.indexes == ("https://user/simple", "https://one", "https://two")
    assert (found.proxy, found.timeout_s) == ("box:3128", 7)
    site.write_text("[global]\nindex-url = https://site/simple\n")
    assert Source.configured(home).indexes[0] == "https://site/simple"
    own = tmp_path / "own.conf"
    own.write_text("[global]\nindex-url = https://own/simple\ncert = /c.pem\n")
    found = Source.configured({**home, "PIP_CONFIG_FILE": str(own)})
    assert found.indexes[0] == "https://own/simple" and found.authorities == "/c.pem"
    user.write_text("index-url without a section\n")
    with pytest.raises(IndexProblem, match=r"pip\.conf cannot be read") as failed:
        Source.configured(home)
    assert failed.value.lasting and "\n" not in str(failed.value)


def test_uvs_file_names_indexes(home: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / ".config/uv/uv.toml"
    file.parent.mkdir(parents=True)
    file.write_text('[[index]]\nurl = "https://more"\n[[index]]\nurl = "https://first"\ndefault = true\n')
    assert Source.configured(home).indexes == ("https://first", "https://more")
    file.write_text('index-url = "https://old"\nextra-index-url = ["https://extra"]\n')
    assert Source.configured(home).indexes == ("https://old", "https://extra")
    assert Source.configured({**home, "PIP_INDEX_URL": "https://pip"}).indexes[0] == "https://pip"
    file.write_text("index-url = ")
    with pytest.raises(IndexProblem, match=r"uv\.toml cannot be read"):
        Source.configured(home)


@pytest.mark.parametrize("form", ["html", "json"])
def test_a_wheel_is_found_in_both_forms_of_the_simple_api(index: FakeIndex, form: str) -> None:
    index.form = form
    assert fetched(Source((index.url,))) == wheel(PART, PIECES[0])
    assert index.asked == [f"/simple/{PART.distribution}", f"/files/{PART.wheel}"] or index.asked == [
        f"/simple/{PART.distribution}/",
        f"/files/{PART.wheel}",
    ]


def test_the_next_index_is_asked_if_the_first_has_no_such_package_or_is_down(index: FakeIndex) -> None:
    with fake_index() as empty:
        empty.pages.clear()
        assert fetched(Source((empty.url, index.url))) == wheel(PART, PIECES[0])
        with pytest.raises(IndexProblem, match=r"not on the package index \(127\.0\.0\.1\)") as failed:
            fetched(Source((empty.url,)))
        assert failed.value.lasting
    assert fetched(Source(("http://127.0.0.1:9/simple", index.url))) == wheel(PART, PIECES[0])
    with pytest.raises(IndexProblem, match="no index is configured"):
        fetched(Source(()))


def test_folders_of_wheels_and_file_indexes_work(tmp_path: Path) -> None:
    content = wheel(PART, PIECES[0])
    (tmp_path / PART.wheel).write_bytes(content)
    assert fetched(Source((), links=(str(tmp_path),))) == content
    assert fetched(Source((), links=(tmp_path.as_uri(),))) == content
    page = tmp_path / "simple" / PART.distribution / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../{PART.wheel}">x</a>')
    assert fetched(Source(((tmp_path / "simple").as_uri(),))) == content


def test_a_web_page_cannot_name_a_file_of_this_machine(index: FakeIndex, tmp_path: Path) -> None:
    (tmp_path / PART.wheel).write_bytes(b"private")
    index.links[PART.distribution] = (tmp_path / PART.wheel).as_uri()
    with pytest.raises(IndexProblem, match="is not an HTTP address"):
        fetched(Source((index.url,)))


def test_credentials_come_from_the_url_or_netrc(index: FakeIndex, tmp_path: Path) -> None:
    index.login = "me:p@ss"
    with pytest.raises(IndexProblem, match=r"127\.0\.0\.1 answers 401") as failed:
        fetched(Source((index.url,)))
    assert failed.value.lasting
    named = index.url.replace("http://", "http://me:p%40ss@")
    assert fetched(Source((named,))) == wheel(PART, PIECES[0])
    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login me password p@ss\n")
    file.chmod(0o600)
    assert fetched(Source((index.url,), netrc=str(file))) == wheel(PART, PIECES[0])
    file.write_text("machine 127.0.0.1 nonsense\n")
    with pytest.raises(IndexProblem, match="answers 401"):
        fetched(Source((index.url,), netrc=str(file)))


def test_credentials_do_not_reach_another_host(index: FakeIndex) -> None:
    with fake_index() as other:
        index.links[PART.distribution] = f"{other.url.removesuffix('simple')}files/{PART.wheel}"
        named = index.url.replace("http://", "http://me:secret@")
        assert fetched(Source((named,))) == wheel(PART, PIECES[0])
        assert index.logins[0].startswith("Basic ") and other.logins == [""]


def test_a_proxy_is_used(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    proxy = index.url.removeprefix("http://").removesuffix("/simple")
    with pytest.raises(IndexProblem, match=r"not on the package index \(index\.invalid\)"):
        fetched(Source(("http://index.invalid/simple",), proxy=proxy))
    assert index.asked == [f"http://index.invalid/simple/{PART.distribution}/"]


def test_unreadable_certificates_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nothing")
    with pytest.raises(IndexProblem, match=r"certificates in .*bad\.pem cannot be read"):
        Index(Source(authorities=str(tmp_path / "bad.pem")))
    assert Index(Source(authorities=ssl.get_default_verify_paths().openssl_capath))
