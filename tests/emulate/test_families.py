"""The dialect that a model writes by default, derived from its name."""

from __future__ import annotations

import pytest

from toolwire.emulate.dialects import DEFAULT, DIALECTS, FAMILIES, dialects_of, family_of


@pytest.mark.parametrize(
    ("model", "dialect"),
    [
        ("qwen3:4b", "hermes"),
        ("qwen2.5-coder:7b", "hermes"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen_xml"),
        ("qwen3.5:9b", "qwen_xml"),
        ("glm-4.6", "glm"),
        ("llama3.1:8b", "llama_json"),
        ("meta-llama/Llama-4-Scout-17B", "pythonic"),
        ("mistral:7b", "mistral"),
        ("mistral-small3.2:24b", "mistral_compact"),
        ("devstral", "mistral_compact"),
        ("deepseek-r1:7b", "deepseek_v3"),
        ("deepseek-v3.1", "deepseek_v31"),
        ("deepseek-ai/DeepSeek-V3.2", "dsml"),
        ("moonshotai/Kimi-K2-Instruct", "kimi"),
        ("kimi-k3", "kimi_k3"),
        ("gpt-oss:20b", "harmony"),
        ("gemma4:12b", "gemma"),
        ("command-r7b", "cohere"),
        ("granite3.3:8b", "granite"),
        ("granite4:micro", "hermes"),
        ("MiniMax-M2", "minimax"),
        ("LFM2-1.2B", "lfm2"),
        ("phi-4", None),
        ("gpt-5.5", None),
    ],
)
def test_a_name_reveals_the_family(model: str, dialect: str | None) -> None:
    assert family_of(model) == dialect


def test_every_family_has_a_dialect_that_exists() -> None:
    assert {dialect for _, dialect in FAMILIES} <= set(DIALECTS)


def test_the_familys_own_dialect_is_looked_for_beside_the_default() -> None:
    assert dialects_of("glm-4.6", None) == (*DEFAULT, "glm")
    assert dialects_of("qwen3:4b", ()) == DEFAULT == dialects_of("phi-4", None)


def test_a_setting_wins_over_the_family() -> None:
    assert dialects_of("glm-4.6", ("sentinel",)) == ("sentinel",)
