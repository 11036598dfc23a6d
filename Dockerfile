# The service and its commands, with Spark for the lake. See docs/how-to/run-in-containers.md.

FROM python:3.13-slim-bookworm AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/* \
 && pip install --no-cache-dir uv
WORKDIR /src
COPY pyproject.toml setup.py uv.lock README.md LICENSE ./
COPY services services
RUN UV_PROJECT_ENVIRONMENT=/opt/spillway uv sync --frozen --no-dev --no-editable --extra spark \
 && /opt/spillway/bin/python -m compileall -q /opt/spillway

FROM python:3.13-slim-bookworm
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --create-home --home-dir /var/lib/spillway spillway \
 # A new volume takes owner and mode of the directory that it is mounted on.
 && install --directory --owner=spillway --group=spillway --mode=0700 /var/lib/spillway /lake
COPY --from=build /opt/spillway /opt/spillway
ENV PATH=/opt/spillway/bin:$PATH SPILLWAY_JARS=/opt/spillway/jars
RUN python -m spillway.lake.jars --into "$SPILLWAY_JARS" --with s3
USER spillway
VOLUME /var/lib/spillway
EXPOSE 8080 50051
ENTRYPOINT ["spillway"]
CMD ["serve", "--data-dir", "/var/lib/spillway", "--host", "0.0.0.0"]
