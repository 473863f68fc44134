"""Providers that speak the OpenAI API: where they are, and which variables hold their keys.

Names are those that LiteLLM's model names begin with. What a provider's own documentation calls its
key's variable stands beside LiteLLM's name for it where the two differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Provider(NamedTuple):
    """One of them."""

    base_url: str | None
    """None: a configuration has to say."""
    key: str | None
    """The variable that holds its key, as LiteLLM names it; None: it needs none, or any."""
    suffix: str = ""
    """What LiteLLM's api_base lacks of a base URL."""
    also: str | None = None
    """What its own documentation calls that variable."""

    def key_set(self, environ: Mapping[str, str]) -> str | None:
        """The variable with its key that is set here."""
        return next((name for name in (self.also, self.key) if name and environ.get(name)), None)


PROVIDERS: Final = {
    "ai21": Provider("https://api.ai21.com/studio/v1", "AI21_API_KEY"),
    "anthropic": Provider("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
    "azure": Provider(None, "AZURE_API_KEY"),
    "baseten": Provider("https://inference.baseten.co/v1", "BASETEN_API_KEY"),
    "cerebras": Provider("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "codestral": Provider("https://codestral.mistral.ai/v1", "CODESTRAL_API_KEY"),
    "custom_openai": Provider(None, None),
    "deepinfra": Provider("https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY"),
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "featherless_ai": Provider("https://api.featherless.ai/v1", "FEATHERLESS_AI_API_KEY"),
    "fireworks_ai": Provider(
        "https://api.fireworks.ai/inference/v1", "FIREWORKS_AI_API_KEY", also="FIREWORKS_API_KEY"
    ),
    "friendliai": Provider(
        "https://api.friendli.ai/serverless/v1", "FRIENDLIAI_API_KEY", also="FRIENDLI_TOKEN"
    ),
    "gemini": Provider("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "hosted_vllm": Provider(None, None),
    "hyperbolic": Provider("https://api.hyperbolic.xyz/v1", "HYPERBOLIC_API_KEY"),
    "lambda_ai": Provider("https://api.lambda.ai/v1", "LAMBDA_API_KEY"),
    "litellm_proxy": Provider(None, "LITELLM_PROXY_API_KEY"),
    "llamafile": Provider("http://127.0.0.1:8080/v1", None),
    "lm_studio": Provider(None, None),
    "meta_llama": Provider("https://api.llama.com/compat/v1", "LLAMA_API_KEY"),
    "minimax": Provider("https://api.minimax.io/v1", "MINIMAX_API_KEY"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "moonshot": Provider("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
    "morph": Provider("https://api.morphllm.com/v1", "MORPH_API_KEY"),
    "nebius": Provider("https://api.studio.nebius.ai/v1", "NEBIUS_API_KEY"),
    "novita": Provider("https://api.novita.ai/v3/openai", "NOVITA_API_KEY"),
    "nscale": Provider("https://inference.api.nscale.com/v1", "NSCALE_API_KEY"),
    "nvidia_nim": Provider("https://integrate.api.nvidia.com/v1", "NVIDIA_NIM_API_KEY"),
    "ollama": Provider("http://localhost:11434", None, "/v1"),
    "ollama_chat": Provider("http://localhost:11434", None, "/v1"),
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openai_like": Provider(None, None),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "perplexity": Provider(
        "https://api.perplexity.ai", "PERPLEXITYAI_API_KEY", also="PERPLEXITY_API_KEY"
    ),
    "sambanova": Provider("https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
    "scaleway": Provider("https://api.scaleway.ai/v1", "SCW_SECRET_KEY"),
    "text-completion-openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "together_ai": Provider(
        "https://api.together.xyz/v1", "TOGETHERAI_API_KEY", also="TOGETHER_API_KEY"
    ),
    "v0": Provider("https://api.v0.dev/v1", "V0_API_KEY"),
    "vercel_ai_gateway": Provider("https://ai-gateway.vercel.sh/v1", "VERCEL_AI_GATEWAY_API_KEY"),
    "volcengine": Provider("https://ark.cn-beijing.volces.com/api/v3", "VOLCENGINE_API_KEY"),
    "wandb": Provider("https://api.inference.wandb.ai/v1", "WANDB_API_KEY"),
    "xai": Provider("https://api.x.ai/v1", "XAI_API_KEY"),
    "xinference": Provider(None, None),
    "zai": Provider("https://api.z.ai/api/paas/v4", "ZAI_API_KEY"),
}
"""Those at their own address, and those at one that has to be given."""
