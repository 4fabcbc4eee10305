# Three images from one file:
#   gateway      the API gateway, with the sidecar for guards and the semantic cache
#   engine       the bundled engine on the CPU
#   engine-gpu   the same for NVIDIA GPUs
#
#   docker build --target gateway -t tollgate .
#   docker build --target engine --build-arg TORCH_INDEX=<index of torch's CPU builds> -t tollgate-engine .
#
# Build arguments:
#   TORCH_INDEX   where torch comes from; empty is the ordinary index, whose torch for Linux is the CUDA build. That
#                 one runs on CPUs too, but with it an image has several GB instead of one.
#   EXTRAS        of the gateway: "guards", or empty for an image without torch and without the sidecar
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
FROM base AS builder
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_TRUSTED_HOST PIP_CERT
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv --without-pip /opt/tollgate
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./

FROM builder AS gateway-dependencies
ARG TORCH_INDEX= EXTRAS=guards
# There is no source here yet, so this installs an empty package and all that it depends on.
RUN if [ -n "$TORCH_INDEX" ] && [ -n "$EXTRAS" ]; then \
        pip --python /opt/tollgate/bin/python install --no-deps --index-url "$TORCH_INDEX" "$(grep '^torch==' constraints.txt)"; \
    fi \
    && pip --python /opt/tollgate/bin/python install --constraint constraints.txt ".${EXTRAS:+[$EXTRAS]}" \
    && pip --python /opt/tollgate/bin/python uninstall --yes tollgate

FROM builder AS engine-dependencies
ARG TORCH_INDEX=
RUN if [ -n "$TORCH_INDEX" ]; then \
        pip --python /opt/tollgate/bin/python install --no-deps --index-url "$TORCH_INDEX" "$(grep '^torch==' constraints.txt)"; \
    fi \
    && pip --python /opt/tollgate/bin/python install --constraint constraints.txt '.[engine]' \
    && pip --python /opt/tollgate/bin/python uninstall --yes tollgate

FROM builder AS wheel
COPY gateway gateway
COPY engine engine
COPY kernels kernels
RUN pip wheel --no-deps --wheel-dir /dist .

# --- the images -----------------------------------------------------------------------------------------------
FROM base AS gateway
COPY --from=gateway-dependencies /opt/tollgate /opt/tollgate
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip --python /opt/tollgate/bin/python install --no-cache-dir --no-index --no-deps /dist/*.whl
COPY policies /etc/tollgate/policies
ENV TOLLGATE_POLICIES=/etc/tollgate/policies \
    TOLLGATE_STATE_DIR=/var/lib/tollgate \
    TOLLGATE_HOST=0.0.0.0 \
    TOLLGATE_PORT=8000
USER tollgate
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
ENTRYPOINT ["tollgate"]
CMD ["serve"]

FROM base AS engine
# A compiler, for the processor or GPU that the first start meets: kernels/native, and Triton's launchers.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY --from=engine-dependencies /opt/tollgate /opt/tollgate
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip --python /opt/tollgate/bin/python install --no-cache-dir --no-index --no-deps /dist/*.whl
USER tollgate
EXPOSE 8100
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8100/health', timeout=4)"]
ENTRYPOINT ["python", "-m", "engine"]
CMD ["serve", "--model", "demo", "--host", "0.0.0.0", "--port", "8100"]

FROM engine AS engine-gpu
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

# A build that names no target makes the gateway.
FROM gateway
