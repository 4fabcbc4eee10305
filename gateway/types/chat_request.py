"""What is asked of a model, in one form for every dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.apis import Api, Form
from gateway.types.json_value import Json
from gateway.value import value


@dataclass(frozen=True, slots=True)
class Native:
    """A request as its caller wrote it, for backends that speak the caller's own dialect.

    They send ``body``, which may hold more than the canonical form. All others send the canonical form. Whoever changes
    the content changes both: ``body``, and by ``read`` the canonical form.
    """

    dialect: str
    body: Mapping[str, Json]
    read: Callable[[Mapping[str, Json]], ChatRequest]
    """The canonical form of a body of this kind. Raises ``BadRequest``."""
    beyond: tuple[str, str] | None = None
    """The first thing the answer depends on that the canonical form cannot express: its path, and what it is."""
    client: str = ""
    """What the caller's program says of itself within the prompt, which the canonical form is without."""


@value
class ChatRequest:
    """A question to a model, in one canonical form for every inbound dialect.

    Exactly one of ``messages`` (a conversation) and ``prompt`` (raw text or token ids to continue) is set.
    ``params`` holds every other parameter under its OpenAI name, forwarded as the caller wrote it.
    """

    model: str
    messages: tuple[Mapping[str, Json], ...] | None = None
    prompt: Json = None
    stream: bool = False
    include_usage: bool = False
    n: int = 1
    params: Mapping[str, Json] = field(default_factory=dict)
    continues: bool = False
    """The last message, or the prompt's end, is a partial answer: go on from there without repeating it."""
    embeds: bool = False
    """The prompts' embeddings are wanted. The answer has one chunk a prompt: ``{"embedding": …}`` as its delta."""
    native: Native | None = field(default=None, compare=False)
    """The request as its caller wrote it, where the canonical form holds less."""
    truncates: bool = False
    """Where the conversation is too long for the model, its oldest part may be left out."""
    api: Api | None = None
    """The API that is asked in place of one that generates text; its answer is passed on as it comes: chunks with
    ``{"bytes": …}`` as their delta, or one with ``{"json": …}``, the content type in the first one's envelope."""
    form: Form | None = field(default=None, compare=False)
    """The upload that is sent, where that API takes no JSON."""

    @property
    def generates(self) -> bool:
        """Text is wanted, token by token: no vectors, and nothing that is passed on as it comes."""
        return not self.embeds and self.api is None

    @property
    def is_whole(self) -> bool:
        """Text is wanted, and nobody is to see a part of it before all of it has come."""
        return not (self.stream or self.embeds or self.truncates) and self.api is None

    @property
    def prompt_count(self) -> int:
        """Prompts to answer: several only where ``prompt`` is a list of texts, or of lists of token ids."""
        prompt = self.prompt
        return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1

    @property
    def answers_per_prompt(self) -> int:
        """Answers generated for each prompt, more than ``n`` where ``best_of`` says so; 1 for an embedding."""
        if not self.params:
            return self.n
        best_of = self.params.get("best_of")
        return max(self.n, best_of) if type(best_of) is int and self.generates else self.n

    @property
    def answers(self) -> int:
        """Answers generated side by side, for all prompts."""
        each = self.answers_per_prompt
        return each if self.prompt is None else each * self.prompt_count

    @property
    def slots(self) -> int:
        """Of a backend's concurrency: one for each answer, one for all embeddings and for what is passed on."""
        return self.answers if self.generates else 1

    @property
    def choices(self) -> int:
        """Choices in the response: ``n`` for each prompt; of embeddings, one for each text."""
        return self.n if self.prompt is None else self.n * self.prompt_count

    def having(self, params: Mapping[str, Json]) -> ChatRequest:
        """The same with other parameters, in a third of the time that ``dataclasses.replace`` takes."""
        return ChatRequest(
            *(self.model, self.messages, self.prompt, self.stream, self.include_usage, self.n, params),
            *(self.continues, self.embeds, self.native, self.truncates, self.api, self.form),
        )

    def speaks(self, dialect: str) -> bool:
        """Whether the caller wrote in ``dialect``, and is to be answered in it."""
        return self.native is not None and self.native.dialect == dialect
