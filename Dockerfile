# The gateway as an image: docs/docker.md. tests/service/test_docker.py runs these steps.
FROM debian:13-slim

RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN useradd --system --create-home --home-dir /var/lib/toolwire toolwire

WORKDIR /opt/source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
# What to install besides the gateway: docs/install.md#extras
ARG EXTRAS=service
# The versions that the tests use. pip cannot check hashes here, because a folder has none.
RUN --mount=type=cache,target=/root/.cache/pip \
    sed -E '/--hash=/d; s/ \\$//' constraints.txt > versions.txt \
 && python3 -m venv /opt/toolwire \
 && /opt/toolwire/bin/pip install --constraint versions.txt ".[${EXTRAS}]" \
 && touch /opt/toolwire/built-by-dockerfile

ENV PATH=/opt/toolwire/bin:$PATH
# Inside a container, loopback cannot be reached from outside. Toolwire starts on this address only if it has a key.
ENV TOOLWIRE_SERVER__HOST=0.0.0.0
USER toolwire
WORKDIR /var/lib/toolwire
VOLUME /var/lib/toolwire
EXPOSE 8788
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8788/livez', timeout=4)"]
ENTRYPOINT ["toolwire"]
CMD ["serve"]
