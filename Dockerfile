# Four images from one file:
#   gateway          the API gateway, without torch
#   gateway-guards   the same with the sidecar's packages: models of guards, the semantic cache, /v1/embeddings
#   engine           the bundled engine on the CPU
#   engine-gpu       the same for NVIDIA GPUs
#
#   docker build --target gateway -t tollgate-gateway .
#   docker build --target engine --build-arg TORCH_INDEX=<index of torch's CPU builds> -t tollgate-engine .
#
# Build arguments:
#   TORCH_INDEX   where torch comes from; empty is the ordinary index, whose torch for Linux is the CUDA build. That
#                 one runs on CPUs too, but with it an image has several GB instead of less than one.
#   COMMIT        what `tollgate --version` tells beside the version: COMMIT=$(git describe --always --dirty)
#   PYTHON_IMAGE  the base, any Debian-based image with Python 3.11 or later and pip
#   PIP_*         pip's own settings for the time of the build (PIP_INDEX_URL is a mirror); not kept in the image
ARG PYTHON_IMAGE=python:3.12-slim-bookworm

# --- what the final images stand on ---------------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS base
ENV PATH=/opt/tollgate/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# One writable folder, the home: with a volume there and a tmpfs on /tmp, the root file system can be read-only.
RUN useradd --system --uid 10001 --user-group --home-dir /var/lib/tollgate --create-home --shell /usr/sbin/nologin tollgate
WORKDIR /var/lib/tollgate

# --- dependencies, apart from the source: editing code does not reinstall them --------------------------------
# Build arguments are named in every stage that runs pip: buildah does not hand them on from one stage to the next.
FROM base AS builder
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN apt-get update && apt-get install -y --no-install-recommends binutils && rm -rf /var/lib/apt/lists/* \
    && python -m venv --without-pip /opt/tollgate
WORKDIR /build
COPY pyproject.toml constraints.txt scripts/image.py ./

FROM builder AS gateway-dependencies
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_TRUSTED_HOST PIP_CERT
RUN python image.py /opt/tollgate dns kubernetes kv-events otel postgres scaler

FROM builder AS gateway-guards-dependencies
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_TRUSTED_HOST PIP_CERT
ARG TORCH_INDEX=
RUN python image.py /opt/tollgate dns guards kubernetes kv-events otel postgres scaler

FROM builder AS engine-dependencies
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_TRUSTED_HOST PIP_CERT
ARG TORCH_INDEX=
RUN python image.py /opt/tollgate engine otel

FROM builder AS source
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_TRUSTED_HOST PIP_CERT
COPY README.md LICENSE setup.py ./
COPY policies policies
COPY gateway gateway
COPY engine engine
COPY kernels kernels
ARG COMMIT=
RUN TOLLGATE_COMMIT="$COMMIT" pip --python /opt/tollgate/bin/python install --no-deps --no-compile .

# --- the images -----------------------------------------------------------------------------------------------
# Each imports what its start imports once, and what a worker loads where its policy asks for it, so that the bytecode
# of just that is kept.
FROM base AS gateway-base
COPY policies /etc/tollgate/policies
ENV TOLLGATE_POLICIES=/etc/tollgate/policies \
    TOLLGATE_STATE_DIR=/var/lib/tollgate \
    TOLLGATE_HOST=0.0.0.0 \
    TOLLGATE_PORT=8000
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
ENTRYPOINT ["tollgate"]
CMD ["serve"]

FROM gateway-base AS gateway-guards
COPY --from=gateway-guards-dependencies /opt/tollgate /opt/tollgate
COPY --from=source /opt/tollgate /opt/tollgate
RUN PYTHONDONTWRITEBYTECODE= python -c "import gateway.__main__, gateway.process.worker, gateway.app, gateway.quota.redis, gateway.stores.redis_finder, \
       gateway.backends.transport, jwt, gateway.sidecar.worker; \
       from gateway.sidecar.models import classifier, embedder, entities, index, minilm, shared_index"
USER tollgate

FROM base AS engine
# A compiler, for the processor or GPU that the first start meets: kernels/native, and Triton's launchers. Its parts for
# link-time optimization and sanitizers are not used.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* \
    && rm -f /usr/bin/*lto-dump* /usr/lib/gcc/*/*/lto1 /usr/lib/gcc/*/*/lib*san* /usr/lib/*-linux-gnu/lib*san.so*
COPY --from=engine-dependencies /opt/tollgate /opt/tollgate
COPY --from=source /opt/tollgate /opt/tollgate
RUN PYTHONDONTWRITEBYTECODE= python -c "import engine.__main__, engine.server.serve, engine.process, engine.worker.runner"
USER tollgate
EXPOSE 8100
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8100/health', timeout=4)"]
ENTRYPOINT ["python", "-m", "engine"]
CMD ["serve", "--model", "demo", "--host", "0.0.0.0", "--port", "8100"]

FROM engine AS engine-gpu
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

# Last, so that a build that names no target makes it.
FROM gateway-base AS gateway
COPY --from=gateway-dependencies /opt/tollgate /opt/tollgate
COPY --from=source /opt/tollgate /opt/tollgate
RUN PYTHONDONTWRITEBYTECODE= python -c "import gateway.__main__, gateway.process.worker, gateway.app, gateway.quota.redis, gateway.stores.redis_finder, \
       gateway.backends.transport, jwt"
USER tollgate
