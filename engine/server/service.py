"""What the HTTP process serves: a model that generates text, or one that makes vectors or scores."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from starlette.applications import Starlette

from engine.begun_process import BegunProcess
from engine.client import EngineClient
from engine.config import ServerConfig
from engine.pooling.client import PoolingClient
from engine.pooling.spec import PoolingSpec, find_spec
from engine.server.adapter_access import AdapterAccess, read_token
from engine.server.adapter_upload import AdapterUploads
from engine.server.app import create_app
from engine.server.gpus import GpuSampler
from engine.server.pooling.app import create_pooling_app
from engine.server.renderer import Renderer
from engine.server.template_files import read_templates
from engine.server.tokenizer import Tokenizer
from engine.server.tracing import Tracer

MakeTracer = Callable[[ServerConfig], Tracer | None]


async def start(
    config: ServerConfig, make_tracer: MakeTracer, begun: BegunProcess | None = None
) -> GeneratingService | PoolingService:
    """Starts the engine process, or goes on with one that has ``begun``. Raises ``StartupError``."""
    engine = config.engine
    spec = await asyncio.to_thread(find_spec, engine.model, engine.task, matryoshka=engine.matryoshka)
    if spec is not None:
        return PoolingService(config, spec, await PoolingClient.start(engine, begun))
    return GeneratingService(config, await EngineClient.start(engine, begun), make_tracer)


class GeneratingService:
    def __init__(self, config: ServerConfig, client: EngineClient, make_tracer: MakeTracer) -> None:
        self.client = client
        self._config = config
        self._make_tracer = make_tracer
        self._tokenizer: Tokenizer | None = None
        self._template: Renderer | None = None
        self._tracer: Tracer | None = None
        self._gpus: GpuSampler | None = None
        self._access = AdapterAccess()
        self._uploads: AdapterUploads | None = None

    async def prepare(self) -> None:
        """Loads what can be loaded while the engine process imports torch. Raises ``StartupError``."""
        model = self._config.engine.model
        if self._config.engine.slots:
            token = read_token(self._config.adapter_token_file, os.environ)
            self._access = AdapterAccess(token, self._config.adapter_folders)
            if self._access.home is not None:
                self._uploads = AdapterUploads(self._access.home, self._config.max_adapter_bytes)
        self._tokenizer = await asyncio.to_thread(Tokenizer, model)
        if templates := read_templates(model, self._tokenizer.settings):
            self._template = await Renderer.start(templates, self._tokenizer.roles)

    async def app(self) -> Starlette:
        """When the engine process is ready. Raises ``StartupError``."""
        if self._tokenizer is None:
            raise ValueError("not prepared yet")
        config, ready = self._config, await self.client.ready()
        self._tracer = await asyncio.to_thread(self._make_tracer, config)
        self._gpus = GpuSampler(ready.gpus).start()
        return create_app(
            self.client,
            ready,
            self._tokenizer,
            self._template,
            name=config.served_model_name,
            max_body_bytes=config.max_body_bytes,
            adapters=config.engine.adapters,
            access=self._access,
            uploads=self._uploads,
            also=None if config.any_model_name and not ready.max_adapters else (config.given_model_name,),
            refuse_over_context=config.over_context == "refuse",
            max_string_length=config.max_string_length,
            tracer=self._tracer,
            gpus=self._gpus,
            sleep_mode=config.sleep_mode,
        )

    async def close(self) -> None:
        if self._template is not None:
            await self._template.close()
        await self.client.close()
        if self._uploads is not None:
            await asyncio.to_thread(self._uploads.close)
        if self._gpus is not None:
            self._gpus.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)


class PoolingService:
    def __init__(self, config: ServerConfig, spec: PoolingSpec, client: PoolingClient) -> None:
        self.client = client
        self._config = config
        self._spec = spec
        self._gpus: GpuSampler | None = None

    async def prepare(self) -> None:
        """Nothing takes long."""

    async def app(self) -> Starlette:
        config, ready = self._config, await self.client.ready()
        self._gpus = GpuSampler(ready.gpus).start()
        return await asyncio.to_thread(
            create_pooling_app,
            self.client,
            ready,
            self._spec,
            config.engine.model,
            name=config.served_model_name,
            max_body_bytes=config.max_body_bytes,
            also=None if config.any_model_name else (config.given_model_name,),
            gpus=self._gpus,
        )

    async def close(self) -> None:
        await self.client.close()
        if self._gpus is not None:
            self._gpus.close()
