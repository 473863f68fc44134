"""Configurations in the shapes that LiteLLM's documentation publishes."""

from __future__ import annotations

from typing import Final

ENVIRON: Final = {"AZURE_API_BASE": "https://acme-env.openai.azure.com", "TEAM": "search"}

SHUFFLE: Final = """
model_list:
  - model_name: gpt-4o
    litellm_params:
      model: azure/gpt-4o-eu
      api_base: https://acme-eu.openai.azure.com/
      api_key: os.environ/AZURE_KEY_EU
      api_version: "2025-04-01-preview"
      rpm: 6
    model_info:
      id: eu
  - model_name: gpt-4o
    litellm_params:
      model: azure/gpt-4o-fr
      api_base: os.environ/AZURE_API_BASE
      api_key: "sk-in-the-file"
      rpm: 1440
      tpm: 100000
      max_parallel_requests: 12
router_settings:
  routing_strategy: simple-shuffle
  model_group_alias: {"gpt-4": "gpt-4o"}
  num_retries: 2
  timeout: 30
  redis_host: redis.example
  redis_password: os.environ/REDIS_PASSWORD
  redis_port: 1992
"""

RELIABILITY: Final = """
model_list:
  - model_name: zephyr-beta
    litellm_params:
      model: hosted_vllm/HuggingFaceH4/zephyr-7b-beta
      api_base: http://10.0.0.1:8001/v1
      stream_timeout: 4
  - model_name: zephyr-beta
    litellm_params:
      model: hosted_vllm/HuggingFaceH4/zephyr-7b-beta
      api_base: http://10.0.0.2:8001/v1
  - model_name: gpt-3.5-turbo
    litellm_params:
      model: gpt-3.5-turbo
      api_key: os.environ/OPENAI_API_KEY
      timeout: 20
      temperature: 0.2
  - model_name: gpt-3.5-turbo-16k
    litellm_params: {model: gpt-3.5-turbo-16k, organization: org-7}
litellm_settings:
  num_retries: 3
  request_timeout: 10
  fallbacks: [{"zephyr-beta": ["gpt-3.5-turbo"]}, {"gpt-3.5-turbo": ["zephyr-beta", "gpt-9"]}]
  context_window_fallbacks: [{"zephyr-beta": ["gpt-3.5-turbo-16k"]}]
  content_policy_fallbacks: [{"*": ["gpt-3.5-turbo-16k"]}]
  default_fallbacks: ["gpt-3.5-turbo"]
  allowed_fails: 3
  callbacks: ["langfuse"]
general_settings:
  master_key: sk-1234
  database_url: postgresql://user:password@db.example/litellm
"""

PROVIDERS: Final = """
environment_variables:
  REDIS_HOST: redis.example
model_list:
  - model_name: claude
    litellm_params:
      model: bedrock/anthropic.claude-instant-v1
      aws_region_name: us-east-1
  - model_name: claude
    litellm_params:
      model: anthropic/claude-sonnet-4-5
      api_key: os.environ/ANTHROPIC_API_KEY
    model_info:
      mode: chat
      supports_vision: true
      input_cost_per_token: 0.000003
      output_cost_per_token: 0.000015
  - model_name: local
    litellm_params:
      model: ollama_chat/llama3.2
      api_base: http://localhost:11434
  - model_name: openai/*
    litellm_params: {model: openai/*}
  - model_name: "*"
    litellm_params:
      model: openai/*
      api_key: os.environ/OPENAI_API_KEY
  - model_name: nowhere
    litellm_params: {model: custom_openai/m, api_base: os.environ/NOT_SET}
  - model_name: incomplete
    litellm_params: {model: openai/}
  - model_name: proxied
    litellm_params: {model: big, custom_llm_provider: openai, api_base: "https://p.example/v1"}
router_settings:
  routing_strategy: latency-based-routing
  routing_strategy_args: {ttl: 10}
  enable_pre_call_checks: true
"""

ORDERED: Final = """
model_list:
  - model_name: m
    litellm_params: {model: openai/m, weight: 9, order: 1, rpm: 0}
    model_info: {id: first}
  - model_name: m
    litellm_params: {model: groq/m, weight: 1, order: 1, input_cost_per_token: 1.5e-07}
    model_info: {id: second}
  - model_name: m
    litellm_params: {model: together_ai/m, weight: 5, order: 2}
    tpm: 5000
    model_info: {id: third}
  - model_name: o
    litellm_params: {model: mistral/o}
router_settings:
  num_retries: 50
  model_group_alias:
    "n": {model: m, hidden: true}
  fallbacks: [{"m": ["m"]}, {"o": ["third"]}]
litellm_settings:
  num_retries: 1
  drop_params: true
  cache: true
"""

SAMPLES: Final = {
    "shuffle": SHUFFLE,
    "reliability": RELIABILITY,
    "providers": PROVIDERS,
    "ordered": ORDERED,
}
