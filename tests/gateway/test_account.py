"""What a turn sent and used is counted once, with and without rules for its calls."""

from __future__ import annotations

import pytest

from toolwire.core.events import CallBegin, CallEnd, Dropped, Event, Finish, Text
from toolwire.core.policy import NO_RULES, Policy, PolicyRules
from toolwire.gateway.account import Account

CALLS: list[Event] = [
    Text("a"),
    CallBegin(0, "look", "c1"),
    CallEnd(0),
    CallBegin(1, "find", "c2"),
    CallEnd(1),
]


def counted(rules: PolicyRules, events: list[Event]) -> Account:
    account = Account(0.0, None)
    policy = account.policies[0, 0] = None if rules == NO_RULES else Policy(rules, account.dropped)
    account.saw(events if policy is None else policy.feed(events), 0)
    return account


@pytest.mark.parametrize("rules", [NO_RULES, PolicyRules(max_calls=9)], ids=["no rules", "rules"])
def test_a_drop_of_an_earlier_stage_counts_once(rules: PolicyRules) -> None:
    account = counted(rules, [Dropped("phantom"), *CALLS, Dropped("phantom", 2), Finish("tool_calls")])
    assert account.dropped == {"phantom": 3}
    assert account.called() == (2, False, "off")
    assert (account.call_names, account.call_ids) == (["look", "find"], ["c1", "c2"])


def test_a_call_above_the_limit_is_dropped_and_not_counted_as_a_call() -> None:
    account = counted(PolicyRules(stop_after="burst", max_calls=1), CALLS)
    assert account.called() == (1, True, "burst")
    assert (account.call_names, account.dropped) == (["look"], {"cap": 1})
