"""API keys: storing, finding, revoking and rotating them, and their permissions."""

from __future__ import annotations

import asyncio
import hmac
import logging
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from toolwire.access.gate import Gate
from toolwire.access.keyring import FRESH_S, LOOK_AGAIN_S, REREAD_S, WAIT_S, KeyRing
from toolwire.access.keys import KeyGrant, KeyLimits, KeyRecords, any_stored, key_id_of
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Message, TextPart, ToolSpec, Turn
from toolwire.settings.types import LimitSettings, ServerSettings
from toolwire.store.store import Store

TURN = Turn("chat", "codex-high", (Message("user", (TextPart("hi"),)),))


class Time:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def ring(
    store: Store | None,
    time: Time,
    *keys: str,
    admin: tuple[str, ...] = (),
    limits: LimitSettings | None = None,
) -> KeyRing:
    records = KeyRecords(store, time) if store is not None else None
    return KeyRing(keys, admin, limits, records, clock=time, ticks=time)


# --- storing ---


async def test_a_key_is_random_and_only_its_hash_is_stored(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/keys.db")
    stored, text = await KeyRecords(store).add("laptop", {"models": ["*"]}, {})
    other, another = await KeyRecords(store).add("phone", {"models": ["*"]}, {})
    await store.close()
    assert text.startswith("tw_") and len(text) == 43 and text != another and stored.id != other.id
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"laptop" in written and text.encode() not in written and text[10:].encode() not in written
    assert "sha256" not in stored.public() and text not in str(stored.public())


async def test_a_stored_key_is_found_and_a_wrong_one_is_not(store: Store, time: Time) -> None:
    stored, text = await KeyRecords(store, time).add("laptop", {"models": ["*"]}, {})
    found = ring(store, time, "of-the-settings")
    await found.refresh()
    holder = found.find(text.encode())
    assert holder is not None and (holder.key_id, holder.name, holder.grant) == (stored.id, "laptop", None)
    configured = found.find(b"of-the-settings")
    assert configured is not None and configured.key_id == key_id_of("of-the-settings")
    for wrong in (
        b"",
        b"tw_",
        text[:-1].encode(),
        text.upper().encode(),
        b"\xff\xfe",
        stored.id.encode(),
        stored.sha256.encode(),
    ):
        assert found.find(wrong) is None


async def test_the_name_of_an_active_key_is_not_reused(store: Store) -> None:
    records = KeyRecords(store)
    first, _ = await records.add("laptop", {}, {})
    with pytest.raises(ToolwireError, match="laptop"):
        await records.add("laptop", {}, {})
    await records.revoke(first.id)
    await records.add("laptop", {}, {})
    for bad in ("", " ", "x" * 81):
        with pytest.raises(ToolwireError):
            await records.add(bad, {}, {})


# --- revoked and rotated ---


async def test_a_revoked_key_stops_working_on_every_node_within_five_seconds(
    store: Store, time: Time
) -> None:
    stored, text = await KeyRecords(store, time).add("laptop", {}, {})
    nodes = [ring(store, time), ring(store, time)]
    for node in nodes:
        await node.refresh()
        assert node.find(text.encode()) is not None
    await KeyRecords(store, time).revoke(stored.id)
    time.now += FRESH_S
    for node in nodes:
        assert node.due
        await node.refresh()
        assert node.find(text.encode()) is None


async def test_a_busy_server_does_not_wait_for_the_keys_to_be_read_again(
    store: Store, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = KeyRecords(store, time)
    _, text = await records.add("laptop", {}, {})
    found = KeyRing(records=records, clock=time, ticks=time)
    await found.refresh()
    gate, reads = asyncio.Event(), 0
    changed = KeyRecords.changed

    async def slow(self: KeyRecords, *given: Any) -> Any:
        nonlocal reads
        reads += 1
        await gate.wait()
        return await changed(self, *given)

    monkeypatch.setattr(KeyRecords, "changed", slow)
    time.now += REREAD_S
    for _ in range(5):
        await found.refresh()  # would hang if it waited
    assert found.find(text.encode()) is not None
    gate.set()
    await found.close()
    assert reads == 1


async def test_a_rotated_key_keeps_its_id_and_the_old_text_works_for_a_while(
    store: Store, time: Time
) -> None:
    records = KeyRecords(store, time)
    first, old = await records.add("laptop", {"models": ["m*"], "tools": False}, {"requests_per_minute": 7})
    second, new = await records.rotate(first.id, grace_s=3600)
    third, newest = await records.rotate(second.id, grace_s=60)
    found = ring(store, time)
    await found.refresh()
    holders = [found.find(text.encode()) for text in (old, new, newest)]
    assert len(set(holders)) == 1 and holders[0] is not None and holders[0].key_id == first.id
    assert holders[0].grant == KeyGrant(("m*",), tools=False, limits=KeyLimits(requests_per_minute=7))
    time.now += 61  # the ring has not read the keys again: it knows the end of the grace period
    assert [found.find(text.encode()) is not None for text in (old, new, newest)] == [True, False, True]
    time.now += 3600
    assert [found.find(text.encode()) is not None for text in (old, new, newest)] == [False, False, True]
    with pytest.raises(ToolwireError):
        await records.rotate(first.id, grace_s=1)
    await records.revoke(third.id)
    assert not any(key.lives(time.now + 1) for key in await records.all())


async def test_revoking_ends_a_grace_period_and_rotating_does_not_undo_it(store: Store, time: Time) -> None:
    records = KeyRecords(store, time)
    first, old = await records.add("laptop", {}, {})
    await records.rotate(first.id, grace_s=3600)
    await records.revoke(first.id)
    found = ring(store, time)
    await found.refresh()
    time.now += 1
    assert found.find(old.encode()) is None


async def test_a_revoked_key_is_revoked_whatever_the_clock_says(store: Store, time: Time) -> None:
    """Checked with a clock behind that of the revoking machine, and with one that is set back."""
    elsewhere = Time()
    elsewhere.now += 300
    records = KeyRecords(store, elsewhere)
    plain, text = await records.add("laptop", {}, {})
    first, old = await records.add("robot", {}, {})
    await records.rotate(first.id, grace_s=0)
    await records.revoke(plain.id)
    elsewhere.now += 60
    await records.revoke(plain.id)  # revoked already
    for back in (0, 3600):
        time.now -= back
        found = ring(store, time)
        await found.refresh()
        assert found.find(text.encode()) is None and found.find(old.encode()) is None
    assert [key.public()["revoked_at"] for key in await records.all() if key.name == "laptop"] == [
        elsewhere.now - 60
    ]
    assert await records.add("laptop", {}, {})
    with pytest.raises(ToolwireError):
        await KeyRecords(store, time).rotate(plain.id, grace_s=60)


async def test_a_grace_period_stays_over_if_the_clock_is_set_back(store: Store, time: Time) -> None:
    """Also a grace period that was over when the keys were read."""
    records = KeyRecords(store, time)
    texts = []
    for name, grace_s in (("long over", 1), ("over", 60), ("under way", 7200)):
        key, text = await records.add(name, {}, {})
        await records.rotate(key.id, grace_s)
        texts.append(text.encode())
    time.now += 10
    ticks = Time()
    found = KeyRing(records=records, clock=time, ticks=ticks)
    await found.refresh()
    time.now += 60
    assert [found.find(text) is not None for text in texts] == [False, False, True]
    time.now -= 3600
    assert [found.find(text) is not None for text in texts] == [False, False, True]
    _, new = await records.add("another", {}, {})
    ticks.now += FRESH_S
    await found.refresh()
    assert [found.find(text) is not None for text in (*texts, new.encode())] == [False, False, True, True]


async def test_revoking_the_last_key_does_not_open_the_server(store: Store, time: Time) -> None:
    found = ring(store, time)
    await found.refresh()
    assert not found.needed
    stored, _ = await KeyRecords(store, time).add("laptop", {}, {})
    await KeyRecords(store, time).revoke(stored.id)
    time.now += FRESH_S
    await found.refresh()
    assert found.needed


async def test_a_new_key_works_at_once_and_wrong_keys_cause_few_reads(
    store: Store, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    changed = KeyRecords.changed

    async def counted(self: KeyRecords, *given: Any) -> Any:
        nonlocal reads
        reads += 1
        return await changed(self, *given)

    monkeypatch.setattr(KeyRecords, "changed", counted)
    gate = Gate(ServerSettings(), ring(store, time, "of-the-settings"))
    for _ in range(20):
        with pytest.raises(ToolwireError):
            await gate.caller({b"authorization": b"Bearer wrong"}, None)
    assert reads == 1
    _, text = await KeyRecords(store, time).add("laptop", {}, {})
    time.now += LOOK_AGAIN_S
    assert (await gate.caller({b"authorization": f"Bearer {text}".encode()}, None)).name == "laptop"


# --- when the store does not answer ---


class Broken:
    """A store that answers only while `up` is True."""

    def __init__(self, store: Store) -> None:
        self.store, self.up = store, True

    async def run(self, work: Any, action: str) -> Any:
        if not self.up:
            raise ToolwireError("server", "no store")
        return await self.store.run(work, action)


async def test_known_keys_work_while_the_store_is_down_which_is_logged_once(
    store: Store, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    _, text = await KeyRecords(store, time).add("laptop", {}, {})
    broken: Any = Broken(store)
    found = ring(broken, time)
    await found.refresh()
    broken.up = False
    with caplog.at_level(logging.WARNING, "toolwire.keys"):
        for _ in range(4):
            time.now += FRESH_S
            await found.refresh()
            assert found.find(text.encode()) is not None
        assert len(caplog.records) == 1 and "no store" in caplog.text
        broken.up = True
        time.now += FRESH_S
        await found.refresh()
        await found.close()
    assert len(caplog.records) == 2 and "again" in caplog.records[1].message


async def test_a_store_that_hangs_delays_only_one_request(
    store: Store, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text = await KeyRecords(store, time).add("laptop", {}, {})
    found = ring(store, time)
    await found.refresh()
    gate, changed = asyncio.Event(), KeyRecords.changed

    async def slow(self: KeyRecords, *given: Any) -> Any:
        await gate.wait()
        return await changed(self, *given)

    monkeypatch.setattr(KeyRecords, "changed", slow)
    began = monotonic()
    for _ in range(8):
        time.now += FRESH_S
        await found.refresh()
        await found.look_again()
        assert found.find(text.encode()) is not None
    assert WAIT_S <= monotonic() - began < 4 * WAIT_S
    gate.set()
    await found.close()
    assert not found._failing


async def test_after_a_timeout_a_hanging_store_delays_no_request(
    store: Store, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text = await KeyRecords(store, time).add("laptop", {}, {})
    found = ring(store, time, "of-the-settings")
    gate = Gate(ServerSettings(), found)
    await found.refresh()
    given_up, reads = asyncio.Event(), 0

    async def hangs(self: KeyRecords, *given: Any) -> Any:
        nonlocal reads
        reads += 1
        await given_up.wait()
        raise ToolwireError("overloaded", "no answer")

    async def ask() -> None:
        assert (await gate.caller({b"authorization": f"Bearer {text}".encode()}, None)).name == "laptop"
        assert (await gate.caller({b"authorization": b"Bearer of-the-settings"}, None)).lasting
        with pytest.raises(ToolwireError):
            await gate.caller({b"authorization": b"Bearer wrong"}, None)

    monkeypatch.setattr(KeyRecords, "changed", hangs)
    time.now += FRESH_S
    began = monotonic()
    for _ in range(5):
        for _ in range(5):
            await ask()
            time.now += REREAD_S
        given_up.set()
        await found.close()
        given_up.clear()
    assert reads == 5 and WAIT_S <= monotonic() - began < 2 * WAIT_S


async def test_an_idle_node_reads_the_keys_again_after_the_store_was_down(store: Store, time: Time) -> None:
    """The earlier failure does not count: the next request waits for the keys, as do concurrent ones."""
    records = KeyRecords(store, time)
    revoked, old = await records.add("old", {}, {})
    broken: Any = Broken(store)
    gates = [Gate(ServerSettings(), ring(broken, time)) for _ in range(2)]
    for up in (True, False):
        broken.up = up
        for gate in gates:
            assert (await gate.caller({b"authorization": f"Bearer {old}".encode()}, None)).name == "old"
        time.now += FRESH_S
    broken.up = True
    _, new = await records.add("new", {}, {})
    assert (await gates[0].caller({b"authorization": f"Bearer {new}".encode()}, None)).name == "new"
    await records.revoke(revoked.id)
    time.now += FRESH_S
    for gate in gates:
        asked = (gate.caller({b"authorization": f"Bearer {old}".encode()}, None) for _ in range(3))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(answer, ToolwireError) and answer.failure.kind for answer in answers] == [
            "authentication"
        ] * 3


async def test_a_new_key_works_as_soon_as_the_store_is_reachable_again(store: Store, time: Time) -> None:
    broken: Any = Broken(store)
    gate = Gate(ServerSettings(), ring(broken, time, "of-the-settings"))
    await gate.ring.refresh()
    broken.up = False
    time.now += FRESH_S
    await gate.ring.refresh()
    broken.up = True
    _, new = await KeyRecords(store, time).add("new", {}, {})
    time.now += LOOK_AGAIN_S
    assert (await gate.caller({b"authorization": f"Bearer {new}".encode()}, None)).name == "new"


async def test_an_unknown_key_is_not_refused_for_good_while_the_store_cannot_be_read(
    store: Store, time: Time
) -> None:
    """It may be new: 503 and a time to try again, not 401."""
    broken: Any = Broken(store)
    gate = Gate(ServerSettings(), ring(broken, time, "of-the-settings"))
    await gate.ring.refresh()
    unknown = {b"authorization": b"Bearer unknown"}
    with pytest.raises(ToolwireError) as caught:
        await gate.caller(unknown, None)
    assert caught.value.failure.kind == "authentication"
    broken.up = False
    time.now += FRESH_S
    with pytest.raises(ToolwireError) as caught:
        await gate.caller(unknown, None)
    assert (caught.value.failure.kind, caught.value.failure.retry_after_s) == ("backend_unavailable", 1)


async def test_a_key_in_the_settings_does_not_wait_for_the_store(
    store: Store, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store cannot revoke such a key. A request with a stored key waits."""
    _, text = await KeyRecords(store, time).add("laptop", {}, {})
    found = ring(store, time, "of-the-settings")
    gate = Gate(ServerSettings(keys=("of-the-settings",)), found)
    await found.refresh()
    read, changed = asyncio.Event(), KeyRecords.changed

    async def hangs(self: KeyRecords, *given: Any) -> Any:
        await read.wait()
        return await changed(self, *given)

    monkeypatch.setattr(KeyRecords, "changed", hangs)
    time.now += 10 * FRESH_S
    async with asyncio.timeout(WAIT_S / 2):
        for _ in range(3):
            assert (
                await gate.caller({b"authorization": b"Bearer of-the-settings"}, ("127.0.0.1", 1))
            ).lasting
    assert found._reading is None and found._later is not None  # it is read a moment later
    asked = asyncio.ensure_future(
        gate.caller({b"authorization": b"Bearer " + text.encode()}, ("127.0.0.1", 1))
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not asked.done() and found._reading is not None
    read.set()
    assert (await asked).name == "laptop"
    await found.close()


async def test_a_request_with_a_key_in_the_settings_refreshes_the_stored_keys(
    store: Store, time: Time
) -> None:
    """So the last use of stored keys is recorded, and a key in both places counts as the stored one."""
    records = KeyRecords(store, time)
    _, text = await records.add("laptop", {}, {})
    found = ring(store, time, "of-the-settings", text)
    gate = Gate(ServerSettings(keys=("of-the-settings", text)), found)
    assert (
        await gate.caller({b"authorization": b"Bearer " + text.encode()}, ("127.0.0.1", 1))
    ).name == "laptop"
    time.now += 10 * FRESH_S
    await gate.caller({b"authorization": b"Bearer of-the-settings"}, ("127.0.0.1", 1))
    async with asyncio.timeout(5):
        while found._read_at != time.now:
            await asyncio.sleep(0.005)
    await found.close()
    assert [row.last_used_at is not None for row in await records.all()] == [True]


async def test_all_requests_wait_for_the_first_read_of_the_keys(store: Store, time: Time) -> None:
    _, text = await KeyRecords(store, time).add("laptop", {}, {})
    gate = Gate(ServerSettings(keys=("of-the-settings",)), ring(store, time, "of-the-settings"))
    headers = {b"authorization": b"Bearer " + text.encode()}
    holders = await asyncio.gather(*(gate.caller(headers, ("127.0.0.1", 1)) for _ in range(4)))
    assert {holder.name for holder in holders} == {"laptop"}


async def test_before_the_first_read_an_unknown_key_is_not_accepted(store: Store, time: Time) -> None:
    broken: Any = Broken(store)
    broken.up = False
    found = ring(broken, time, "of-the-settings")
    await found.refresh()
    assert found.find(b"of-the-settings") is not None
    with pytest.raises(ToolwireError) as caught:
        found.check_known()
    assert caught.value.failure.retry_after_s


async def test_the_last_use_of_a_key_is_stored_to_the_minute(store: Store, time: Time) -> None:
    records = KeyRecords(store, time)
    _, text = await records.add("laptop", {}, {})
    found = ring(store, time)
    await found.refresh()
    assert (await records.all())[0].last_used_at is None
    found.find(text.encode())
    time.now += FRESH_S
    await found.refresh()
    await found.close()
    assert (await records.all())[0].last_used_at == time.now
    before = time.now
    found.find(text.encode())
    time.now += FRESH_S
    await found.refresh()
    await found.close()
    assert (await records.all())[0].last_used_at == before


# --- lookup ---


async def test_a_lookup_does_the_same_work_for_known_and_unknown_keys(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def counted(one: Any, other: Any) -> bool:
        compared.append((len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr("toolwire.access.keyring.hmac.compare_digest", counted)
    found = ring(None, time, *(f"key-{number}" for number in range(500)))
    for token in (b"key-0", b"key-499", b"wrong", b"key-"):
        found.find(token)
    assert compared == [(32, 32)] * 4


async def test_two_processes_compute_different_digests_of_a_key(time: Time) -> None:
    one, other = ring(None, time, "a"), ring(None, time, "a")
    assert one._blind(b"x" * 32) != other._blind(b"x" * 32)


# --- permissions ---


@pytest.mark.parametrize(
    ("patterns", "model", "allowed"),
    [
        (("*",), "anything", True),
        (("qwen*", "claude"), "qwen3/4b", True),
        (("qwen*", "claude"), "claude", True),
        (("qwen*", "claude"), "claude-2", False),
        (("ollama/*",), "ollama/llama", True),
        (("codex-high",), "codex", True),  # by the name that was requested
        (("other",), "codex", False),
    ],
)
def test_a_key_may_use_only_the_models_of_its_patterns(
    patterns: tuple[str, ...], model: str, allowed: bool
) -> None:
    grant = KeyGrant(patterns)
    if allowed:
        grant.check(TURN, model)
    else:
        with pytest.raises(ToolwireError) as caught:
            grant.check(TURN, model)
        assert caught.value.failure.kind == "model_not_found" and "codex-high" in caught.value.failure.message


def test_a_key_that_may_not_use_tools_gets_an_error() -> None:
    grant = KeyGrant(tools=False)
    grant.check(TURN, "codex")
    with pytest.raises(ToolwireError, match="may not use tools") as caught:
        grant.check(replace(TURN, tools=(ToolSpec("look"),)), "codex")
    assert (caught.value.failure.kind, caught.value.failure.param) == ("permission", "tools")


async def test_limits_in_the_settings_apply_to_keys_without_their_own(store: Store, time: Time) -> None:
    records = KeyRecords(store, time)
    _, plain = await records.add("plain", {}, {})
    _, own = await records.add("own", {}, {"requests_per_minute": 5, "budget_tokens": 9})
    _, free = await records.add("free", {}, {"requests_per_minute": 0, "concurrent": 0})
    found = ring(
        store,
        time,
        "configured",
        admin=("chief",),
        limits=LimitSettings(requests_per_minute=100, concurrent=3),
    )
    await found.refresh()
    limits = {}
    for name, text in (
        ("plain", plain),
        ("own", own),
        ("free", free),
        ("configured", "configured"),
        ("chief", "chief"),
    ):
        holder = found.find(text.encode())
        assert holder is not None
        limits[name] = holder.grant.limits if holder.grant is not None else None
    assert (
        limits["plain"]
        == limits["configured"]
        == limits["chief"]
        == KeyLimits(requests_per_minute=100, concurrent=3)
    )
    assert limits["own"] == KeyLimits(requests_per_minute=5, concurrent=3, budget_tokens=9)
    assert limits["free"] is None
    assert found.anyone.grant is not None and found.anyone.grant.limits == limits["plain"]


def test_an_unrestricted_key_has_no_grant(time: Time) -> None:
    found = ring(None, time, "configured", admin=("chief",))
    plain, chief = found.find(b"configured"), found.find(b"chief")
    assert plain is not None and plain.grant is None and not plain.admin
    assert chief is not None and chief.admin and chief.grant is not None and not chief.grant.limited
    assert found.anyone.grant is None


async def test_any_stored_reports_whether_a_store_has_keys(store_url: str) -> None:
    assert not await any_stored(store_url)
    store = Store(store_url)
    await KeyRecords(store).add("laptop", {}, {})
    await store.close()
    assert await any_stored(store_url)
