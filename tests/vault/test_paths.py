"""Confinement: anything but a note of the vault is refused with one clear line, even if files are swapped."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from toolwire.vault.paths import Vault
from toolwire.vault.policy import PathPolicy, PathRefused

SECRET = "the secret outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A vault with a secret beside it."""
    vault = tmp_path / "vault"
    (vault / "Notes" / "Deep").mkdir(parents=True)
    (vault / ".obsidian").mkdir()
    (vault / ".git").mkdir()
    (vault / ".trash").mkdir()
    (vault / "Notes" / "a.md").write_text("alpha\nbeta\ngamma\n")
    (vault / "Notes" / "Deep" / "b.md").write_text("deep")
    (vault / "top.md").write_text("top")
    (vault / ".obsidian" / "app.md").write_text(SECRET)
    (vault / ".git" / "config.md").write_text(SECRET)
    (vault / ".trash" / "gone.md").write_text(SECRET)
    (vault / ".hidden.md").write_text(SECRET)
    (tmp_path / "secret.md").write_text(SECRET)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "inner.md").write_text(SECRET)
    return vault


@pytest.fixture
def vault(root: Path) -> Iterator[Vault]:
    with Vault(root) as opened:
        yield opened


# Refused by their text alone: path, a word of the reason.
SPELLED: tuple[tuple[str, str], ...] = (
    ("", "empty"),
    ("/", "relative"),
    ("/etc/passwd", "relative"),
    ("//etc/passwd", "relative"),
    ("///etc/passwd.md", "relative"),
    ("//server/share/x.md", "relative"),
    ("\\\\server\\share\\x.md", "backslash"),
    ("..", ". or .."),
    ("../secret.md", ". or .."),
    ("../../secret.md", ". or .."),
    ("Notes/../../secret.md", ". or .."),
    ("Notes/../top.md", ". or .."),
    ("Notes/..", ". or .."),
    ("./top.md", ". or .."),
    ("Notes/./a.md", ". or .."),
    (".", ". or .."),
    ("../vault/top.md", ". or .."),
    ("..\\secret.md", "backslash"),
    ("Notes\\..\\..\\secret.md", "backslash"),
    ("Notes\\a.md", "backslash"),
    ("C:\\secret.md", "backslash"),
    ("C:/secret.md", "drive"),
    ("c:secret.md", "drive"),
    ("Z:top.md", "drive"),
    ("Notes//a.md", "empty segments"),
    ("Notes/", "empty segments"),
    ("top.md/", "empty segments"),
    ("file:///etc/passwd.md", "empty segments"),
    ("top.md\0", "NUL"),
    ("top.md\0.md", "NUL"),
    ("\0", "NUL"),
    ("Notes/\0/a.md", "NUL"),
    (".obsidian/app.md", "hidden"),
    (".git/config.md", "hidden"),
    (".trash/gone.md", "hidden"),
    (".hidden.md", "hidden"),
    ("Notes/.hidden.md", "hidden"),
    (".OBSIDIAN/app.md", "hidden"),
    ("...", "hidden"),
    (".../x.md", "hidden"),
    (".../...//x.md", "hidden"),
    ("..../x.md", "hidden"),
    (".. /secret.md", "hidden"),
    ("..\u200b/secret.md", "hidden"),
    ("\u200b.obsidian/app.md", "hidden"),
    ("\u200c../secret.md", "hidden"),
    ("\u2060.git/config.md", "hidden"),
    (" .obsidian/app.md", "hidden"),
    ("top.md\n", "control"),
    ("to\np.md", "control"),
    ("top\r.md", "control"),
    ("top\t.md", "control"),
    ("top\x1b[2J.md", "control"),
    ("top\x7f.md", "control"),
    ("top\x85.md", "control"),
    ("top\u2028.md", "control"),
    ("top\ud800.md", "Unicode"),
    ("top\udcff.md", "Unicode"),
    ("top\u202edm.exe.md", "direction"),
    ("\u2066top.md", "direction"),
    ("top\u200f.md", "direction"),
    ("\ufefftop.md", "direction"),
    ("top.md ", "space"),
    ("top.md.", "dot"),
    ("top.md. .", "dot"),
    ("top.md...", "dot"),
    ("Notes /a.md", "space"),
    ("Notes./a.md", "dot"),
    (" top.md", "space"),
    ("\u00a0top.md", "space"),
    ("top.md\u3000", "space"),
    ("Notes/\u200b/a.md", "visible"),
    ("CON", "reserved"),
    ("con.md", "reserved"),
    ("Nul.txt", "reserved"),
    ("NUL .md", "reserved"),
    ("aux.tar.md", "reserved"),
    ("COM1.md", "reserved"),
    ("lpt9.md", "reserved"),
    ("COM¹.md", "reserved"),
    ("Notes/PRN.md", "reserved"),
    ("prn/a.md", "reserved"),
    ("CONOUT$.md", "reserved"),
    ("x" * 252 + ".md/", "empty segments"),
    ("x" * 253 + ".md", "longer than 255"),
    ("ä" * 130 + ".md", "longer than 255"),
    ("a/" * 520 + "x.md", "longer than 1024"),
    ("é/" * 400 + "x.md", "longer than 1024"),
    ("a/" * 40 + "x.md", "more than"),
    ("Notes", "only these files"),
    ("top", "only these files"),
    ("top.md.exe", "only these files"),
    ("top.md~", "only these files"),
    ("script.sh", "only these files"),
    ("page.html", "only these files"),
    ("picture.png", "only these files"),
    ("top.md:stream", "only these files"),
    ("top.md::$DATA", "only these files"),
    ("data.json", "only these files"),
    ("top.m\u0501", "only these files"),
)

# Literal names: nothing is decoded, expanded or folded, so these are files that do not exist.
LITERAL = (
    "%2e%2e/secret.md",
    "%2e%2e%2fsecret.md",
    "x..%2fsecret.md",
    "%2fetc%2fpasswd.md",
    "%252e%252e%252fsecret.md",
    "a..%c0%afsecret.md",
    "~/secret.md",
    "~root/x.md",
    "$HOME/x.md",
    "${HOME}.md",
    "`id`.md",
    "$(id).md",
    "*.md",
    "Notes/?.md",
    "[a-z].md",
    "{a,b}.md",
    "\uff0e\uff0e/secret.md",
    "\u2024\u2024/secret.md",
    "\u2025/secret.md",
    "\u2215etc\u2215passwd.md",
    "Notes\u2044a.md",
    "Notes\uff3ca.md",
    "TOP.md",
    "notes/a.md",
    "top.MD",
    "t\u043ep.md",
    "top.md/x.md",
    "Notes/a.md/b.md",
    "missing/folder/x.md",
    "-rf.md",
    "--help.md",
    "'; DROP TABLE notes; --.md",
    "\U0001f4a9.md",
    "a" * 200 + ".md",
)


@pytest.mark.parametrize(("path", "word"), SPELLED, ids=lambda value: ascii(value)[:40])
def test_a_path_is_refused_by_its_spelling(vault: Vault, path: str, word: str) -> None:
    for ask in (vault.read, vault.read_raw):
        with pytest.raises(PathRefused) as refused:
            ask(path)
        assert word in refused.value.reason
        assert refused.value.kind in ("path", "type")
        assert "\n" not in str(refused.value) and str(refused.value).isprintable()


@pytest.mark.parametrize("path", LITERAL, ids=lambda value: ascii(value)[:40])
def test_an_encoded_or_expandable_path_is_an_ordinary_name(root: Path, vault: Vault, path: str) -> None:
    if path.lower() != path and (root / path).exists():
        pytest.skip("this file system ignores case")
    with pytest.raises(PathRefused) as refused:
        vault.read(path)
    assert refused.value.kind == "missing"
    made = root / path
    if not made.parent.is_file() and not (root / path.split("/")[0]).is_file():
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text("literally")
        if "/a.md/" not in path:
            assert vault.read(path).text == "literally"


def test_a_path_that_is_not_text_is_refused(vault: Vault) -> None:
    for odd in (None, 7, b"top.md", ["top.md"], Path("top.md")):
        with pytest.raises(PathRefused, match="must be text"):
            vault.read(odd)  # type: ignore[arg-type]


# --- files that are none ------------------------------------------------------------------------


def _link(target: str) -> Callable[[Path, Path], None]:
    return lambda vault, outside: os.symlink(target.format(outside=outside, vault=vault), vault / "odd.md")


def _unix_socket(vault: Path, _: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(vault)  # the whole path may be too long for a socket
        try:
            made.bind("odd.md")
        finally:
            os.chdir(here)


def _sparse(vault: Path, _: Path) -> None:
    with open(vault / "odd.md", "wb") as file:
        file.truncate(4 * 1024**3)


def _bytes(data: bytes) -> Callable[[Path, Path], None]:
    def write(vault: Path, _: Path) -> None:
        (vault / "odd.md").write_bytes(data)

    return write


ODD: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "a link to a file outside": (_link("{outside}/secret.md"), "link"),
    "a relative link to a file outside": (_link("../secret.md"), "link"),
    "a link to a file inside": (_link("top.md"), "link"),
    "a link to itself": (_link("odd.md"), "link"),
    "a link to nothing": (_link("nowhere"), "link"),
    "a link to a device": (_link("/dev/zero"), "link"),
    "a link to the memory of this process": (_link("/proc/self/environ"), "link"),
    "a link to a folder outside": (_link("{outside}/secret"), "link"),
    "a folder": (lambda vault, _: (vault / "odd.md").mkdir(), "type"),
    "a pipe": (lambda vault, _: os.mkfifo(vault / "odd.md"), "type"),
    "a socket": (_unix_socket, "type"),
    "a sparse file of 4 GB": (_sparse, "size"),
    "a file over the limit": (_bytes(b"x" * (4 * 1024**2 + 1)), "size"),
    "an ELF binary": (_bytes(b"\x7fELF\0\0\1"), "binary"),
    "a text with one NUL at its end": (_bytes(b"text" * 9999 + b"\0"), "binary"),
    "UTF-16": (_bytes("text".encode("utf-16")), "binary"),
    "Latin-1": (_bytes("caf\xe9".encode("latin-1")), "encoding"),
    "overlong UTF-8": (_bytes(b"\xc0\xafetc"), "encoding"),
    "a surrogate in UTF-8": (_bytes(b"\xed\xa0\x80"), "encoding"),
    "cut UTF-8": (_bytes("日本".encode()[:-1]), "encoding"),
}


@pytest.mark.parametrize("name", ODD)
def test_anything_but_a_readable_file_is_refused(root: Path, vault: Vault, name: str) -> None:
    make, kind = ODD[name]
    make(root, root.parent)
    with pytest.raises(PathRefused) as refused:
        vault.read("odd.md")
    assert refused.value.kind == kind
    assert SECRET not in str(refused.value)
    if kind in ("link", "type"):
        assert "odd.md" not in [entry.path for entry, _ in vault.scan()]


@pytest.mark.skipif(os.geteuid() != 0, reason="devices are made by root only")
def test_a_device_is_refused_before_it_is_opened(root: Path, vault: Vault) -> None:
    try:
        os.mknod(root / "odd.md", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("devices cannot be made here")
    with pytest.raises(PathRefused, match="a device"):
        vault.read("odd.md")


def test_links_to_folders_are_not_entered(root: Path, vault: Vault) -> None:
    os.symlink(root.parent / "secret", root / "linked")
    os.symlink("Notes", root / "inside")
    os.symlink("/", root / "rootlink")
    for path in ("linked/inner.md", "inside/a.md", "rootlink/etc/x.md"):
        with pytest.raises(PathRefused, match="symbolic link") as refused:
            vault.read(path)
        assert refused.value.kind == "link"
    assert [entry.path for entry, _ in vault.scan()] == ["Notes/Deep/b.md", "Notes/a.md", "top.md"]


@pytest.mark.process
def test_an_unreadable_file_is_refused_and_the_walk_continues(root: Path) -> None:
    (root / "locked.md").write_text(SECRET)
    (root / "locked.md").chmod(0)
    (root / "closed").mkdir(mode=0o700)
    (root / "closed" / "x.md").write_text(SECRET)
    (root / "closed").chmod(0)
    program = f"""
import os
os.chdir("/")
from toolwire.vault.paths import Vault
from toolwire.vault.policy import PathRefused
vault = Vault({str(root)!r})
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
for path in ("locked.md", "closed/x.md"):
    try:
        print("read", vault.read(path).text)
    except PathRefused as refused:
        print(refused.kind, refused)
print([entry.path for entry, _ in vault.scan()])
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    (root / "closed").chmod(0o700)
    assert [line.split()[0] for line in told[:2]] == ["unreadable", "unreadable"]
    assert told[2] == "['Notes/Deep/b.md', 'Notes/a.md', 'locked.md', 'top.md']"


def _race(swap: Callable[[], None], attempt: Callable[[], str | None], rounds: int = 1500) -> set[str | None]:
    """Swaps in one thread while another reads; returns what was read."""
    stop = threading.Event()

    def keep_swapping() -> None:
        while not stop.is_set():
            swap()

    thread = threading.Thread(target=keep_swapping)
    thread.start()
    try:
        return {attempt() for _ in range(rounds)}
    finally:
        stop.set()
        thread.join()


def _read(vault: Vault, path: str) -> Callable[[], str | None]:
    def attempt() -> str | None:
        try:
            return vault.read(path).text
        except PathRefused:
            return None

    return attempt


def _swapper(place: Path, good: Path, bad: Path) -> Callable[[], None]:
    def swap() -> None:
        os.rename(good, place)
        os.rename(place, good)
        os.rename(bad, place)
        os.rename(place, bad)

    return swap


def test_a_folder_that_is_swapped_for_a_link_meanwhile_leads_nowhere(root: Path, vault: Vault) -> None:
    good, bad = root.parent / "good", root.parent / "bad"
    good.mkdir()
    (good / "inner.md").write_text("inside")
    os.symlink(root.parent / "secret", bad)
    read = _race(_swapper(root / "swap", good, bad), _read(vault, "swap/inner.md"))
    assert read <= {None, "inside"}


def test_a_file_that_is_swapped_for_a_link_meanwhile_is_not_read(root: Path, vault: Vault) -> None:
    good, bad = root.parent / "good.md", root.parent / "bad.md"
    good.write_text("inside")
    os.symlink(root.parent / "secret.md", bad)
    read = _race(_swapper(root / "swap.md", good, bad), _read(vault, "swap.md"))
    assert read <= {None, "inside"}


def test_a_file_that_is_swapped_for_a_pipe_meanwhile_does_not_hang(root: Path, vault: Vault) -> None:
    good, bad = root.parent / "good.md", root.parent / "bad.md"
    good.write_text("inside")
    os.mkfifo(bad)
    assert _race(_swapper(root / "swap.md", good, bad), _read(vault, "swap.md")) <= {None, "inside"}


def test_a_walk_among_swaps_finds_nothing_outside(root: Path, vault: Vault) -> None:
    good, bad = root.parent / "good", root.parent / "bad"
    good.mkdir()
    (good / "fine.md").write_text("inside")
    os.symlink(root.parent / "secret", bad)

    def attempt() -> str | None:
        return next((entry.path for entry, _ in vault.scan() if "inner" in entry.path), None)

    assert _race(_swapper(root / "swap", good, bad), attempt, 300) == {None}


def test_the_vault_stays_the_folder_that_was_opened(root: Path, vault: Vault) -> None:
    moved = root.parent / "moved"
    os.rename(root, moved)
    os.symlink(root.parent / "secret", root)
    assert vault.read("top.md").text == "top"
    with pytest.raises(PathRefused):
        vault.read("inner.md")


# --- spelling -----------------------------------------------------------------------------------

COMPOSED, DECOMPOSED = unicodedata.normalize("NFC", "Café"), unicodedata.normalize("NFD", "Café")


@pytest.mark.parametrize("spelled", [COMPOSED, DECOMPOSED])
def test_a_name_is_found_with_composed_and_decomposed_accents(root: Path, vault: Vault, spelled: str) -> None:
    (root / spelled).mkdir()
    (root / spelled / f"{spelled}.md").write_text("crème")
    for asked in (COMPOSED, DECOMPOSED):
        note = vault.read(f"{asked}/{asked}.md")
        assert note.text == "crème"
        assert os.listdir(root).count(note.path.split("/")[0]) == 1, (
            "the path is spelled as the folder spells it"
        )


def test_two_names_that_differ_only_in_normalization_are_two_notes(root: Path, vault: Vault) -> None:
    (root / f"{COMPOSED}.md").write_text("composed")
    (root / f"{DECOMPOSED}.md").write_text("decomposed")
    if len([name for name in os.listdir(root) if name.startswith("C")]) < 2:
        pytest.skip("this file system takes them for one")
    assert vault.read(f"{COMPOSED}.md").text == "composed"
    assert vault.read(f"{DECOMPOSED}.md").text == "decomposed"


def test_a_link_is_refused_even_if_it_is_found_by_normalization(root: Path, vault: Vault) -> None:
    os.symlink(root.parent / "secret", root / DECOMPOSED)
    os.symlink(root.parent / "secret.md", root / f"x{DECOMPOSED}.md")
    for path in (f"{COMPOSED}/inner.md", f"x{COMPOSED}.md"):
        with pytest.raises(PathRefused) as refused:
            vault.read(path)
        assert refused.value.kind == "link"


def test_a_name_that_is_not_unicode_is_not_part_of_the_vault(root: Path, vault: Vault) -> None:
    try:
        with open(os.fsencode(root) + b"/bad\xff.md", "w") as file:
            file.write(SECRET)
    except OSError:
        pytest.skip("this file system has only Unicode names")
    assert all("bad" not in entry.path for entry, _ in vault.scan())


# --- patterns and limits ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "path", "hit"),
    [
        ("Private", "Private/x.md", True),
        ("Private/", "Work/Private/deep/x.md", True),
        ("private", "PRIVATE/x.md", True),
        ("Private", "Private notes/x.md", False),
        ("/Private", "Private/x.md", True),
        ("Work/Private", "Private/x.md", False),
        ("Work/Private", "Work/Private/x.md", True),
        ("*.secret.md", "a/b.secret.md", True),
        ("*.secret.md", "a/b.md", False),
        ("a/*/c.md", "a/b/c.md", True),
        ("a/*/c.md", "a/b/b/c.md", False),
        ("a/**/c.md", "a/b/b/c.md", True),
        ("a/**/c.md", "a/c.md", True),
        ("?.md", "x.md", True),
        ("?.md", "xy.md", False),
        ("a.c.md", "abc.md", False),
        (unicodedata.normalize("NFD", "Café"), f"{COMPOSED}/x.md", True),
        ("Pri\u200cvate", "Private/x.md", True),
        ("Private", "Pri\u200cvate/x.md", True),
        ("STRASSE", "straße/x.md", True),
    ],
)
def test_a_pattern_matches(pattern: str, path: str, hit: bool) -> None:
    assert PathPolicy(exclude=[pattern]).allows(path) is not hit
    assert PathPolicy(include=[pattern]).allows(path) is hit


def test_patterns_apply_to_reading_listing_and_walking(root: Path) -> None:
    with Vault(root, exclude=["notes/deep"]) as vault:
        for ask in (vault.read, vault.read_raw):
            with pytest.raises(PathRefused) as refused:
                ask("Notes/Deep/b.md")
            assert refused.value.kind == "excluded"
        assert [entry.path for entry, _ in vault.scan()] == ["Notes/a.md", "top.md"]
        assert [path for path, _ in vault.folders()] == ["", "Notes"]
    with Vault(root, include=["Notes"], exclude=["Deep"]) as vault:
        assert [entry.path for entry, _ in vault.scan()] == ["Notes/a.md"]
        with pytest.raises(PathRefused):
            vault.read("top.md")


# --- what is read -------------------------------------------------------------------------------


def test_max_bytes_cuts_after_a_whole_line(root: Path, vault: Vault) -> None:
    (root / "n.md").write_text("line\n" * 20)
    cut = vault.read("n.md", max_bytes=52)
    assert (cut.text, cut.end_line, cut.truncated) == ("line\n" * 10, 10, True)
    assert not vault.read("n.md", max_bytes=100).truncated


def test_a_note_is_read_whole_or_by_lines(vault: Vault) -> None:
    whole = vault.read("Notes/a.md")
    assert (whole.text, whole.start_line, whole.end_line, whole.total_lines, whole.size) == (
        "alpha\nbeta\ngamma\n",
        1,
        3,
        3,
        17,
    )
    part = vault.read("Notes/a.md", 2, 2)
    assert (part.text, part.start_line, part.end_line, part.sha256) == ("beta\n", 2, 2, whole.sha256)
    assert vault.read("Notes/a.md", 2).text == "beta\ngamma\n"
    assert vault.read("Notes/a.md", 3, 99).end_line == 3
    for lines in ((0, 1), (2, 1), (4, 5), (-1, None)):
        with pytest.raises(PathRefused) as refused:
            vault.read("Notes/a.md", *lines)
        assert refused.value.kind == "limit"


def test_line_ends_and_byte_order_marks_are_not_in_the_text(root: Path, vault: Vault) -> None:
    (root / "w.md").write_bytes("\ufeffeins\r\nzwei\rdrei".encode())
    note = vault.read("w.md")
    assert (note.text, note.total_lines, note.size) == ("eins\nzwei\ndrei", 3, 18)
    (root / "empty.md").write_bytes(b"")
    assert (vault.read("empty.md").text, vault.read("empty.md").total_lines) == ("", 0)


def test_a_walk_is_in_path_order(root: Path, vault: Vault) -> None:
    for name in ("a", "a b", "a-b", "a.d", "Z", "é", "日"):
        (root / name).mkdir()
        (root / name / "x.md").write_text("")
        (root / f"{name}.md").write_text("")
    found = [entry.path for entry, _ in vault.scan()]
    assert found == sorted(found) and len(found) == 17


def test_a_walk_that_ends_early_closes_its_descriptors(vault: Vault) -> None:
    before = len(os.listdir("/dev/fd"))
    walks: tuple[Iterator[object], ...] = (vault.scan(), vault.folders())
    for walk in walks:
        next(walk)
        assert isinstance(walk, Generator)
        walk.close()
    for _ in range(3):
        vault.read("Notes/Deep/b.md")
    for path in ("Notes/none.md", "top.md/x.md", "none/x.md"):
        with pytest.raises(PathRefused):
            vault.read(path)
    assert len(os.listdir("/dev/fd")) == before


def test_a_missing_vault_is_reported(tmp_path: Path) -> None:
    with pytest.raises(PathRefused, match="cannot be opened"):
        Vault(tmp_path / "none")


def test_there_are_at_least_eighty_hostile_cases() -> None:
    assert len(SPELLED) + len(LITERAL) + len(ODD) >= 80
