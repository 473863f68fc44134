"""Who runs an endpoint, by its host: telemetry's provider name, and the price list's."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

from headway.core.snapshot import Endpoint

HOSTS: tuple[tuple[str, str, str], ...] = (
    # host, or suffix that begins with a dot or dash; gen_ai.provider.name; name at genai-prices
    ("api.openai.com", "openai", "openai"),
    (".api.openai.com", "openai", "openai"),
    (".openai.azure.com", "azure.ai.openai", "azure"),
    (".cognitiveservices.azure.com", "azure.ai.openai", "azure"),
    (".services.ai.azure.com", "azure.ai.inference", "azure"),
    (".models.ai.azure.com", "azure.ai.inference", "azure"),
    (".inference.ai.azure.com", "azure.ai.inference", "azure"),
    ("api.anthropic.com", "anthropic", "anthropic"),
    ("generativelanguage.googleapis.com", "gcp.gemini", "google"),
    ("aiplatform.googleapis.com", "gcp.vertex_ai", "google"),
    ("-aiplatform.googleapis.com", "gcp.vertex_ai", "google"),
    ("bedrock*.amazonaws.com", "aws.bedrock", "aws"),
    ("bedrock*.api.aws", "aws.bedrock", "aws"),
    ("api.groq.com", "groq", "groq"),
    ("api.deepseek.com", "deepseek", "deepseek"),
    ("api.mistral.ai", "mistral_ai", "mistral"),
    ("openrouter.ai", "openrouter", "openrouter"),
    ("api.x.ai", "x_ai", "x-ai"),
    ("api.together.xyz", "together_ai", "together"),
    ("api.fireworks.ai", "fireworks_ai", "fireworks"),
    ("api.perplexity.ai", "perplexity", "perplexity"),
    ("api.cohere.com", "cohere", "cohere"),
    ("api.cohere.ai", "cohere", "cohere"),
    ("api.moonshot.ai", "moonshot_ai", "moonshotai"),
    ("api.moonshot.cn", "moonshot_ai", "moonshotai"),
    (".ml.cloud.ibm.com", "ibm.watsonx.ai", "ibm"),
)
"""Whose a host is. With a star: a host below the suffix, one of whose labels begins so: load
balancers and machines of Amazon's customers are below amazonaws.com, too, and serve what they like
at no price of Bedrock's."""
PRICE_NAMES = {name: priced_as for _, name, priced_as in HOSTS}
_DEFAULT_PROVIDER = "openai"


def provider_of(endpoint: Endpoint) -> tuple[str, bool]:
    """(gen_ai.provider.name, whether that is more than a guess)."""
    if endpoint.provider is not None:
        return endpoint.provider, True
    return _guess(endpoint.base_url, endpoint.dialect)


def provider_name(endpoint: Endpoint) -> str:
    """`gen_ai.provider.name` of an endpoint: as the policy says, else by host, else "openai"."""
    return provider_of(endpoint)[0]


@lru_cache(maxsize=1024)  # asked for with each call
def _guess(base_url: str, dialect: str) -> tuple[str, bool]:
    host = (urlsplit(base_url).hostname or "").rstrip(".")
    for pattern, name, _ in HOSTS:
        if _is_of(host, pattern):
            return name, True
    if dialect == "azure":
        return "azure.ai.openai", True
    return _DEFAULT_PROVIDER, False


def _is_of(host: str, pattern: str) -> bool:
    label, star, suffix = pattern.partition("*")
    if star:
        return host.endswith(suffix) and any(
            part == label or part.startswith(f"{label}-") for part in host.split(".")
        )
    return host == pattern or (pattern[0] in ".-" and host.endswith(pattern))
