"""The table of rules: what makes a policy invalid, and what is probably a mistake in a valid one.

A rule is a function of what is checked, and yields what it finds, each at a key path. A new one is written beside those
of its noun, and stands here by its severity. ``tests/gateway/policy/test_rules.py`` has for each a policy in which it
finds something, and one in which it does not.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.policy.rules import (
    access,
    adapters,
    backends,
    cascades,
    credentials,
    experiments,
    extras,
    guards,
    issuers,
    models,
    observing,
    prices,
    residency,
    storage,
    texts,
    values,
)
from gateway.policy.rules.subject import Draft, Findings, Valid

ERRORS: tuple[Callable[[Draft], Findings], ...] = (
    models.unknown_backend,
    models.name_taken,
    models.unknown_model,
    models.unknown_region,
    models.rollout_to_itself,
    cascades.keys_of_a_cascade,
    cascades.step_that_only_embeds,
    access.unknown_tier,
    access.key_given_twice,
    access.key_of_no_model,
    access.nowhere_local,
    issuers.issuer_given_twice,
    issuers.unreadable_jwks,
    backends.engine_launched_elsewhere,
    backends.engines_of_one_port,
    backends.reserved_engine_option,
    backends.engine_that_would_not_start,
    backends.engine_beside_which_none_starts,
    backends.golden_set_that_is_missing,
    backends.prefill_by_no_engine,
    backends.truncated_embeddings,
    adapters.adapters_of_no_server,
    adapters.listings_of_no_server,
    prices.price_of_nothing,
    guards.foreign_embedder,
    texts.unknown_entity,
    texts.slow_pattern,
    texts.unproven_pattern,
    backends.embedder_of_no_engine,
    storage.verifier_of_another_embedder,
    extras.ledger_without_driver,
    residency.nothing_in_region,
    residency.place_outside,
    residency.embedder_outside,
    experiments.unknown_prompt,
    experiments.unknown_guard,
    experiments.guard_of_its_own_tenants,
    experiments.model_of_every_request,
)
"""A policy in which one of these finds something is refused."""

WARNINGS: tuple[Callable[[Valid], Findings], ...] = (
    values.without_value,
    values.variable_in_other_words,
    models.no_larger_context,
    models.fallbacks_in_a_circle,
    models.timeout_beyond_total,
    models.spill_over_to_nobody,
    models.beyond_no_context,
    models.output_beyond_context,
    models.weight_of_least_loaded,
    models.retry_of_one_attempt,
    models.given_twice,
    models.shared_prompts_of_no_model,
    models.split_of_no_weights,
    models.steps_too_short,
    cascades.unreachable_step,
    cascades.no_log_probabilities,
    access.unknown_tenant,
    access.undefined_tier,
    access.expired_key,
    access.strict_alone,
    access.tier_without_queue,
    access.guard_of_nobody,
    access.pattern_of_no_model,
    access.tenant_of_the_house,
    access.everybody_a_proxy,
    access.cors_of_no_origin,
    access.limit_beyond_a_longer_one,
    access.limit_beyond_its_tenant,
    issuers.missing_jwks,
    issuers.sign_in_at_no_page,
    issuers.page_of_nobody,
    issuers.jwks_in_the_clear,
    backends.launch_options_without_launch,
    backends.unreachable_reply,
    backends.drained_nothing,
    backends.kv_events_that_nobody_reads,
    credentials.half_credentials,
    prices.unpriced,
    prices.tokens_for_units,
    prices.misspelt_extra,
    prices.picture_of_no_quality,
    prices.price_of_one_token,
    prices.cached_beyond_input,
    guards.unused_guard_keys,
    guards.unused_self_harm,
    guards.guard_of_no_model,
    guards.held_and_windowed,
    guards.origins_of_answers,
    guards.judge_that_only_flags,
    guards.review_of_nothing,
    guards.remote_webhook,
    guards.remote_judge,
    texts.unknown_language,
    texts.unused_spacy,
    storage.files_elsewhere,
    storage.files_of_one_replica,
    storage.recordings_of_one_replica,
    storage.store_failure_of_no_store,
    storage.ledger_elsewhere,
    storage.budgets_without_a_record,
    storage.entry_beyond_its_store,
    storage.batches_without_files,
    residency.model_never_served,
    residency.guard_outside,
    residency.shadow_outside,
    residency.traces_outside,
    residency.region_of_no_place,
    observing.shares_of_no_budget,
    observing.path_over_grpc,
    observing.scores_nowhere,
    observing.scores_of_nothing,
    observing.evaluation_of_no_model,
    observing.most_of_no_tenants,
    extras.feature_without_extra,
    experiments.weaker_arm,
    experiments.arms_alike,
    experiments.experiment_never_reached,
    experiments.place_of_no_prompt,
    experiments.prompt_of_no_arm,
    experiments.results_nowhere,
    experiments.rolled_out_meanwhile,
)
"""What these find is told by ``tollgate check`` and in the log at the start, and the policy is taken."""


def errors(draft: Draft) -> Findings:
    for rule in ERRORS:
        yield from (found._replace(rule=name_of(rule)) for found in rule(draft))


def warnings(valid: Valid) -> Findings:
    for rule in WARNINGS:
        yield from (found._replace(rule=name_of(rule)) for found in rule(valid))


def name_of(rule: Callable[..., Findings]) -> str:
    """``unknown-backend``, as reports of ``tollgate check`` have it."""
    return rule.__name__.replace("_", "-")
