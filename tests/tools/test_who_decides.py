"""Every route by which a program of the same user could approve a call: none of them counts.

The programs are real: a server on a socket, its store file, a terminal that the attacker creates.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import pytest

from toolwire.core.errors import ToolwireError
from toolwire.store.store import Store
from toolwire.surfaces.web.code import NO_AUTHORITY
from toolwire.tools.approvals import Approvals, Question
from toolwire.tools.consent import OTHER_PROGRAM, Proofs, Signer, decision_text, grant_text, sealed, unsealed
from toolwire.tools.contract import Approval, Asking, Decision, Grant, Preview, Touched

YES = Decision(True)
CODE = "correct horse"
ASKING = Asking("s", "demo", "chat", source="vault:/notes")
SHOWN = Preview((Touched("a", "P/A.md", 10),), diff="+x")
QUESTION = Question("note_write", "run", {"path": "P/A.md"}, SHOWN)


class Place:
    """A person's programs, and what an attacker does with the same user's rights."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "state" / "toolwire.db"
        self.url = f"sqlite:///{self.database}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TOOLWIRE_")}
        self.environment = {**kept, "HOME": str(folder), "TOOLWIRE_STORE__URL": self.url}
        self.running: list[subprocess.Popen[str]] = []

    def asker(self) -> subprocess.Popen[str]:
        """Starts a program that asks, and prints the status of its question in the end."""
        program = [sys.executable, "-c", ASKER, self.url]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=self.environment)
        self.running.append(process)
        return process

    def serve(self) -> tuple[str, str]:
        """Starts `toolwire serve`. Returns its address and its one-time link."""
        command = [sys.executable, "-m", "toolwire", "serve", "--port", "0"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment
        )
        self.running.append(process)
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if found := re.match(r"listening on (http://\S+?)/v1", line):
                break
        else:
            raise AssertionError(process.stderr.read())
        for line in process.stderr:
            if link := re.search(r"(/ui/enter\?token=\S+)", line):
                return found[1], link[1]
        raise AssertionError("no link was printed")

    def command(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "toolwire", *words],
            capture_output=True,
            text=True,
            timeout=60,
            input="yes\n",
            start_new_session=True,
            env={**self.environment, **more},
        )

    def under_pty(self, *words: str, typed: str, meanwhile: Callable[[], object] = bool) -> str:
        """Runs a command under a new terminal whose keyboard is the attacker.

        `meanwhile` is called before each answer.
        """
        pid, terminal = pty.fork()
        if not pid:
            os.execve(sys.executable, [sys.executable, "-m", "toolwire", *words], self.environment)
        shown, answers = b"", typed.encode().splitlines(keepends=True)
        while True:
            try:
                read = os.read(terminal, 4096)
            except OSError:
                break
            if not read:
                break
            shown += read
            # only a prompt: the line break after a hidden answer is not another one
            if answers and read.rstrip().endswith(b":"):
                meanwhile()
                os.write(terminal, answers.pop(0))
        os.waitpid(pid, 0)
        os.close(terminal)
        return shown.decode()

    def sql(self, query: str, *values: Any) -> list[Any]:
        with sqlite3.connect(self.database, timeout=10) as connection:
            return connection.execute(query, values).fetchall()

    def offer(self, hashed: str, started_by: str) -> None:
        """Writes a session or a link into the store."""
        now = time.time()
        row = (hashed, started_by, now, now, now + 9999, "AAAA")
        self.sql("INSERT INTO web_sessions VALUES (?, ?, ?, ?, ?, ?)", *row)

    def pending(self) -> str:
        """Waits for a question and returns its id."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if self.database.exists():
                try:
                    found = self.sql("SELECT id FROM approvals WHERE status = 'pending'")
                except sqlite3.OperationalError:
                    found = []
                if found:
                    return str(found[0][0])
            time.sleep(0.02)
        raise AssertionError("no question appeared")

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.communicate()


ASKER = """
import asyncio, sys
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals, Question
from toolwire.tools.contract import Asking, Preview, Touched

async def ask(url):
    async with Store(url) as store:
        approvals = Approvals(store, lifetime_s=60)
        shown = Preview((Touched("a", "P/A.md", 10),), diff="+x")
        asking = Asking("s", "demo", "chat", source="vault:/notes")
        question = Question("note_write", "run", {"path": "P/A.md"}, shown)
        (decided,) = await approvals.ask(asking, [question], None)
        print(decided.status)

asyncio.run(ask(sys.argv[1]))
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


def set_code(place: Place, code: str = CODE) -> Signer:
    async def run() -> Signer:
        async with Store(place.url) as store:
            return await Proofs(store).code.set(code, "test")

    return asyncio.run(run())


def change_code(place: Place, code: str) -> None:
    async def run() -> None:
        async with Store(place.url) as store:
            stored = Proofs(store).code
            await stored.set(code, "test", old=await stored.signer(CODE))

    asyncio.run(run())


def outcome(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=60)[0].strip()


# --- the command line ---

pytestmark = pytest.mark.process


@pytest.mark.parametrize("setting", [{}, {"TOOLWIRE_APPROVALS__COMMAND_LINE": "open"}])
@pytest.mark.parametrize("has_code", [False, True])
def test_the_command_line_without_a_terminal(place: Place, has_code: bool, setting: dict[str, str]) -> None:
    """Neither a pipe nor an environment variable of the attacker approves a call."""
    if has_code:
        set_code(place)
    asker = place.asker()
    done = place.command("approvals", "approve", place.pending(), **setting)
    if setting:  # the row is written, and the program that asks does not believe it
        assert outcome(asker) == "expired"
        assert place.sql("SELECT count(*) FROM audit WHERE event = 'forged'") == [(1,)]
    else:
        assert done.returncode == 2 and ("code" in done.stderr)
        assert place.sql("SELECT status FROM approvals") == [("pending",)]


def test_the_code_approves_only_the_call_that_the_command_showed(place: Place) -> None:
    """The attacker shows something harmless before the person enters the code, and restores it then."""
    set_code(place)
    asker = place.asker()
    id = place.pending()
    approve = ("approvals", "approve", id)
    ((asked,),) = place.sql("SELECT arguments FROM approvals")
    rewrite = "UPDATE approvals SET arguments = ?"
    place.sql(rewrite, '{"path": "P/Harmless.md"}')
    shown = place.under_pty(*approve, typed=f"{CODE}\n", meanwhile=lambda: place.sql(rewrite, asked))
    assert "P/Harmless.md" in shown and "does not match what was shown" in shown
    assert place.sql("SELECT status FROM approvals") == [("pending",)]
    shown = place.under_pty(*approve, "--remember", "session", typed=f"{CODE}\n")
    assert re.search(r'path: +"?P/A\.md', shown) and "remembered for: session" in shown
    assert outcome(asker) == "approved"


def test_a_terminal_that_the_attacker_creates_does_not_have_the_code(place: Place) -> None:
    set_code(place)
    place.asker()
    shown = place.under_pty("approvals", "approve", place.pending(), typed="guess-guess\n")
    assert "not the approval code" in shown
    assert place.sql("SELECT status FROM approvals") == [("pending",)]
    changed = place.under_pty("approvals", "code", typed="guess-guess\nmine-mine\nmine-mine\n")
    assert "not the approval code" in changed


def test_the_person_approves_with_the_code_in_a_terminal(place: Place) -> None:
    set_code(place)
    asker = place.asker()
    shown = place.under_pty("approvals", "approve", place.pending(), typed=f"{CODE}\n")
    assert "approved" in shown and CODE not in shown
    assert outcome(asker) == "approved"


def test_a_denial_needs_nothing(place: Place) -> None:
    asker = place.asker()
    assert place.command("approvals", "deny", place.pending()).returncode == 0
    assert outcome(asker) == "denied"


# --- the store file ---


@pytest.mark.parametrize("proof", ["", "own:" + "0" * 64, "code:" + "0" * 128])
def test_a_decision_written_into_the_store(place: Place, proof: str) -> None:
    set_code(place)
    asker = place.asker()
    decision = json.dumps(asdict(YES))
    place.pending()
    query = "UPDATE approvals SET status = 'approved', decided_at = 1, decided_by = 'web', decision = ?"
    place.sql(f"{query}, proof = ?", decision, proof)
    assert outcome(asker) == "expired"
    assert place.sql("SELECT event FROM audit") == [("forged",)]


def test_a_decision_signed_with_another_code(place: Place) -> None:
    set_code(place)
    asker = place.asker()
    id = place.pending()

    async def forge() -> None:
        async with Store(place.url) as store:
            approvals = Approvals(store)
            found = await approvals.records.get(id)
            assert found is not None
            await approvals.decide(found, YES, by="web", signer=Signer(b"x" * 32))

    asyncio.run(forge())
    assert outcome(asker) == "expired"


async def test_a_grant_written_into_the_store(place: Place) -> None:
    async with Store(place.url) as store:
        approvals = Approvals(store, lifetime_s=0.3)
        grant = Grant(
            "grant_1", 1.0, "", "tool", "note_write", "run", "", "appr_0", source="vault:/notes", model="demo"
        )
        await store.run(lambda c: c.execute(INSERT_GRANT, tuple(asdict(grant).values())), "write")
        (asked,) = await approvals.ask(ASKING, [QUESTION], None)
        assert asked.status == "expired", "the person was asked"
        assert await approvals.proofs.lasts(grant) == "never"
        signer = await approvals.proofs.code.set(CODE, "test")
        signed = replace(grant, id="grant_2")
        signed = replace(signed, proof=approvals.proofs.of_grant(signed, signer))
        widened = replace(signed, id="grant_3", model="other")
        rows = [tuple(asdict(one).values()) for one in (signed, widened)]
        await store.run(lambda c: c.executemany(INSERT_GRANT, rows), "write")
        assert [one.id for one in await approvals.valid_grants()] == ["grant_2"]
        later = Approvals(store, proofs=Proofs(store, b"the key of a later server"))
        assert [one.id for one in await later.valid_grants()] == ["grant_2"], "it outlives its server"
        await approvals.revoke("grant_2")
        await store.run(lambda c: c.execute("UPDATE grants SET revoked_at = NULL"), "write")
        assert await approvals.valid_grants() == [], "a revoked grant does not return"


COLUMNS = [one.name for one in fields(Grant)]
INSERT_GRANT = f"INSERT INTO grants ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


# --- the web pages ---


class Answer(NamedTuple):
    status: int
    headers: Any
    text: str


class Browser:
    """A client of the pages."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.cookie = self.page = ""

    def enter(self, link: str) -> Browser:
        response = self._send("GET", link)
        self.page = response.headers["location"].partition("page=")[2]
        self._keep(response)
        return self

    def api(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        response = self._send(method, f"/ui/api{path}", None if body is None else json.dumps(body).encode())
        if "set-cookie" in response.headers:
            self._keep(response)
        return response.status, json.loads(response.text or "{}")

    def _keep(self, response: Answer) -> None:
        ((name, morsel),) = SimpleCookie(response.headers["set-cookie"]).items()
        self.cookie = f"{name}={morsel.value}"

    def _send(self, method: str, path: str, body: bytes | None = None) -> Answer:
        headers = {"cookie": self.cookie, "x-toolwire-page": self.page, "content-type": "application/json"}
        request = Request(self.address + path, body, headers, method=method)
        try:
            response = build_opener(NoRedirect).open(request, timeout=30)
        except HTTPError as error:
            response = error
        with response:
            return Answer(response.status, response.headers, response.read().decode())

    def approve(self, id: str) -> tuple[int, Any]:
        _, asked = self.api("GET", f"/approvals/{id}")
        return self.api("POST", f"/approvals/{id}/decision", {"approved": True, "token": asked["token"]})


class NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@pytest.mark.parametrize("forged", ["session", "link"])
def test_a_session_or_link_written_into_the_store_can_look_but_not_approve(place: Place, forged: str) -> None:
    address, link = place.serve()
    Browser(address).enter(link)  # the store has the secret of page keys from now on
    place.asker()
    id, token, browser = place.pending(), "t" * 43, Browser(address)
    hashed = hashlib.sha256(token.encode()).hexdigest()
    if forged == "session":
        place.offer(hashed, "link")
        ((secret,),) = place.sql("SELECT value FROM preferences WHERE name = 'page_secret'")
        key = bytes.fromhex(json.loads(secret))
        browser.page = hmac.new(key, token.encode(), hashlib.sha256).hexdigest()[:40]
        browser.cookie = f"toolwire_{address.rpartition(':')[2]}={token}"
    else:
        place.offer(f"link:{hashed}", "offered:link")
        browser.enter(f"/ui/enter?token={token}")
    assert browser.api("GET", "/session")[1]["approving"]["decides"] is False
    status, answer = browser.approve(id)
    assert status == 403 and answer["error"]["code"] == "approval_code"
    assert browser.api("PUT", "/session/code", {"code": "my own code"})[0] == 403
    linked = browser.api("POST", "/session/link")[1]["url"].removeprefix(address)
    assert Browser(address).enter(linked).approve(id)[0] == 403
    assert place.sql("SELECT status FROM approvals") == [("pending",)]


def test_the_link_of_toolwire_open_can_look_but_not_approve(place: Place) -> None:
    address, _ = place.serve()
    place.asker()
    id = place.pending()
    opened = place.command("open", "--print")
    link = re.search(r"(/ui/enter\?token=\S+)", opened.stdout + opened.stderr)
    assert link is not None, opened
    browser = Browser(address).enter(link[1])
    status, answer = browser.approve(id)
    assert status == 403 and answer["error"]["code"] == "approval_code"


def test_a_second_server_and_a_new_admin_key_do_not_approve(place: Place) -> None:
    """The attacker gets a link of its own server, and an admin key of the store."""
    address, link = place.serve()
    asker = place.asker()
    id = place.pending()
    other, other_link = place.serve()
    status, answer = Browser(other).enter(other_link).approve(id)
    assert status == 403 and answer["error"]["code"] == "approval_code"
    added = place.command("keys", "add", "mine", "--admin")
    assert added.returncode == 0, added.stderr
    key = re.search(r"\bsk-\S+|\btw\S+", added.stdout + added.stderr)
    assert key is not None, added.stdout
    browser = Browser(address)
    status, answer = browser.api("POST", "/session", {"key": key[0]})
    assert status == 200, answer
    browser.page = answer["page"]
    assert browser.approve(id)[0] == 403
    # The person sets the code on the page of the printed link; only then does the approval count.
    person = Browser(address).enter(link)
    assert person.approve(id)[0] == 403
    assert person.api("PUT", "/session/code", {"code": CODE})[0] == 200
    assert browser.api("POST", "/session/code", {"code": "wrong wrong"})[0] == 403
    assert browser.api("POST", "/session/code", {"code": "wrong again"})[0] == 429
    assert person.approve(id)[0] == 200
    assert outcome(asker) == "approved"


def test_a_code_that_another_program_stores_does_not_count_on_a_running_server(place: Place) -> None:
    address, link = place.serve()
    Browser(address).enter(link)
    set_code(place, "the attacker's code")
    place.asker()
    id = place.pending()
    place.offer("link:" + hashlib.sha256(b"z" * 32).hexdigest(), "offered:open")
    attacker = Browser(address).enter(f"/ui/enter?token={'z' * 32}")
    status, answer = attacker.api("POST", "/session/code", {"code": "the attacker's code"})
    assert status == 403 and "Another program set this code" in answer["error"]["message"]
    assert attacker.approve(id)[0] == 403


def test_the_page_says_beforehand_that_an_approval_needs_the_code(place: Place) -> None:
    address, link = place.serve()
    person = Browser(address).enter(link)
    asker = place.asker()
    id = place.pending()

    def needed(browser: Browser) -> str:
        listed: str = browser.api("GET", "/approvals?status=pending")[1]["approvals"][0]["needs_code"]
        assert browser.api("GET", f"/approvals/{id}")[1]["needs_code"] == listed
        return listed

    assert needed(person) == OTHER_PROGRAM
    place.offer("link:" + hashlib.sha256(b"z" * 32).hexdigest(), "offered:open")
    assert needed(Browser(address).enter(f"/ui/enter?token={'z' * 32}")) == NO_AUTHORITY
    assert person.api("PUT", "/session/code", {"code": CODE})[0] == 200
    assert needed(person) == ""
    # The code is changed outside of this page, so the session's is out of date: its approval would not count.
    change_code(place, "another code")
    assert needed(person) == OTHER_PROGRAM
    assert person.approve(id)[0] == 403
    assert person.api("POST", "/session/code", {"code": "another code"})[0] == 200
    assert person.approve(id)[0] == 200
    assert outcome(asker) == "approved"


def test_the_first_code_counts_where_none_was_set_and_the_limit_is_stated(place: Place) -> None:
    """A program that looks for a code only when it asks, such as `toolwire mcp`, takes the first one."""
    asker = place.asker()
    id = place.pending()
    place.under_pty("approvals", "code", typed="mine-mine\nmine-mine\n")
    place.under_pty("approvals", "approve", id, typed="mine-mine\n")
    assert outcome(asker) == "approved"
    stated = " ".join((ROOT / "SECURITY.md").read_text().split())
    assert "`toolwire mcp` accepts the first code that it finds, so set yours before you use it" in stated
    assert "any program that runs under your user account can set one" in (SETTINGS_PAGE.read_text())


ROOT = Path(__file__).parents[2]
SETTINGS_PAGE = ROOT / "src/toolwire/surfaces/web/static/settings-browser.js"


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_the_memory_and_environment_of_the_server_cannot_be_read(place: Place) -> None:
    done = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["read", "refused", "refused"], done.stderr


HIDDEN = """
import ctypes, os
from toolwire.tools.consent import hide_memory
if os.getuid() == 0:  # root may read everything
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # a change of the user hides a process, too
pid = os.getpid()
def try_to_read(name):
    child = os.fork()
    if not child:
        try:
            open(f"/proc/{pid}/{name}", "rb").read(1)
            print("read", flush=True)
        except OSError:
            print("refused", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
try_to_read("environ")
hide_memory()
try_to_read("environ")
try_to_read("mem")
"""


# --- the binding ---


def approval(**changed: Any) -> Approval:
    one = Approval("appr_1", 1.5, 2.5, "", "s", "chat", "m", "note_write", "run", {"path": "x"}, SHOWN, "")
    return replace(one, **changed)


def test_a_vaults_grant_that_an_older_toolwire_signed_is_still_valid() -> None:
    """Toolwire 0.2 signed the path of the vault, and knew no definitions to pin."""
    grant = Grant("g", 1.5, "", "tool", "file_read", "run", "", "a", source="vault:/notes", model="m")
    older = '["grant","g",1.5,"","tool","file_read","run","","a","/notes","m"]'
    assert grant_text(grant) == older
    assert grant_text(replace(grant, source="mcp:files", pin="sha256:1")) != older
    assert grant_text(replace(grant, pin="sha256:1")) != older


CHANGES: list[Callable[[Approval, Decision, str], tuple[Approval, Decision, str]]] = [
    lambda a, d, by: (replace(a, id="appr_2"), d, by),
    lambda a, d, by: (replace(a, owner="key"), d, by),
    lambda a, d, by: (replace(a, session="t"), d, by),
    lambda a, d, by: (replace(a, model="n"), d, by),
    lambda a, d, by: (replace(a, source="vault:/other"), d, by),
    lambda a, d, by: (replace(a, pin="sha256:1"), d, by),
    lambda a, d, by: (replace(a, tool="note_edit"), d, by),
    lambda a, d, by: (replace(a, stage="share"), d, by),
    lambda a, d, by: (replace(a, expires_at=9.5), d, by),
    lambda a, d, by: (replace(a, arguments={"path": "y"}), d, by),
    lambda a, d, by: (replace(a, shown=replace(SHOWN, diff="+y")), d, by),
    lambda a, d, by: (replace(a, token="other"), d, by),
    lambda a, d, by: (a, replace(d, arguments={"path": "y"}), by),
    lambda a, d, by: (a, replace(d, picked=("a",)), by),
    lambda a, d, by: (a, replace(d, remember="tool"), by),
    lambda a, d, by: (a, replace(d, folder="P"), by),
    lambda a, d, by: (a, replace(d, seen="digest"), by),
    lambda a, d, by: (a, replace(d, within=("P/**",)), by),
    lambda a, d, by: (a, replace(d, standing=True), by),
    lambda a, d, by: (a, d, "shell"),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("signed", [False, True])
async def test_any_changed_field_invalidates_the_proof(signed: bool, change: Callable[..., Any]) -> None:
    async with Store("sqlite://") as store:
        proofs = Proofs(store, b"key")
        signer = await proofs.code.set(CODE, "test") if signed else None
        asked = approval()
        asked = replace(asked, token="x" if signed else proofs.token(asked))
        proof = proofs.of_decision(asked, YES, "web", signer)
        assert proof.startswith("code:" if signed else "own:")

        async def counts(question: Approval, decision: Decision, by: str) -> bool:
            found = replace(question, status="approved", decision=decision, decided_by=by, proof=proof)
            return await proofs.proves_decision(question, found)

        assert await counts(asked, YES, "web")
        changed = change(asked, YES, "web")
        assert decision_text(*changed) != decision_text(asked, YES, "web")
        assert not await counts(*changed)


async def test_a_question_of_another_program_is_approved_only_with_the_code() -> None:
    async with Store("sqlite://") as store:
        proofs, one = Proofs(store, b"key"), approval(token="of another program")
        with pytest.raises(ToolwireError) as caught:
            proofs.of_decision(one, YES, "web", None)
        assert caught.value.failure.code == "approval_code"
        assert proofs.of_decision(one, Decision(False), "web", None) == ""


async def test_the_code_is_stored_as_a_slow_salted_hash_and_changed_only_with_the_old_one() -> None:
    async with Store("sqlite://") as store:
        code = Proofs(store, b"key").code
        first = await code.set(CODE, "test")
        stored = await store.run(lambda c: c.execute("SELECT value FROM preferences").fetchone()[0], "read")
        assert CODE not in stored and first.seed.hex() not in stored
        assert await code.signer(CODE) == first and await code.signer(CODE + "!") is None
        for old in (None, Signer(b"x" * 32)):
            with pytest.raises(ToolwireError, match="already set"):
                await code.set("another code", "test", old=old)
        with pytest.raises(ToolwireError, match="8 to 200"):
            await code.set("short", "test", old=first)
        assert await code.set(CODE, "test", old=first) != first, "a new salt"


def test_a_sealed_value_opens_only_with_its_key_and_its_row() -> None:
    box = sealed(b"key", b"seed", "row")
    assert unsealed(b"key", box, "row") == b"seed"
    others = [(b"other", box, "row"), (b"key", box, "row 2"), (b"key", "AAAA", "row"), (b"key", "é", "row")]
    assert [unsealed(*one) for one in others] == [None] * 4
