# Builds the images of Countersign: one target for each program.
#
#   docker build --target control-plane --tag countersign-control-plane:0.1.0 .
#   docker build --target ext-authz     --tag countersign-ext-authz:0.1.0 .
#   docker build --target cli           --tag countersign-cli:0.1.0 .
#
# The images contain the program, the shared libraries that it needs, CA certificates, licences and an SBOM: no shell and no
# package manager. scripts/image.sh assembles them. docs/run/images.md describes the images.

# The build needs Debian or a derivative, with Rust 1.95 or later and a C compiler. A mirror or a local image can replace it.
ARG BUILDER=docker.io/library/rust:1.95.0-slim-bookworm

FROM ${BUILDER} AS build
# A local builder need not set it, and the caches below depend on it.
ENV CARGO_HOME=/usr/local/cargo
# The version of jq has no influence on the images.
# hadolint ignore=DL3008
RUN command -v jq >/dev/null || { apt-get update && apt-get install -y --no-install-recommends jq && rm -rf /var/lib/apt/lists/*; }
WORKDIR /countersign
COPY scripts/tools.sh scripts/
RUN scripts/tools.sh sbom
COPY . .
# The caches make the next build faster. The images do not depend on them: cargo builds what has changed.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/countersign/target \
    scripts/image.sh build && \
    scripts/image.sh root countersign-control-plane /images/control-plane && \
    scripts/image.sh root countersign-ext-authz /images/ext-authz && \
    scripts/image.sh root countersign /images/cli

FROM scratch AS control-plane
COPY --from=build /images/control-plane/ /
ARG VERSION=0.1.0
ARG REVISION=
ARG CREATED=
LABEL org.opencontainers.image.title="countersign-control-plane" \
      org.opencontainers.image.description="Registers software agents by their public keys and issues their access tokens" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
ENV PATH=/usr/local/bin
USER 65532:65532
# The working directory is the parent of countersign-data, the default of data_dir.
WORKDIR /data
# The API, the sync port and the admin port.
EXPOSE 8443 8444 9090
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/countersign-control-plane"]

FROM scratch AS ext-authz
COPY --from=build /images/ext-authz/ /
ARG VERSION=0.1.0
ARG REVISION=
ARG CREATED=
LABEL org.opencontainers.image.title="countersign-ext-authz" \
      org.opencontainers.image.description="The sidecar of Envoy: verifies agents from memory" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
ENV PATH=/usr/local/bin
USER 65532:65532
# The port for Envoy and the admin port.
EXPOSE 9191 9092
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/countersign-ext-authz"]

FROM scratch AS cli
COPY --from=build /images/cli/ /
ARG VERSION=0.1.0
ARG REVISION=
ARG CREATED=
LABEL org.opencontainers.image.title="countersign-cli" \
      org.opencontainers.image.description="Command line of Countersign: agents, services, roles, keys" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
ENV PATH=/usr/local/bin
USER 65532:65532
# Keys and logins are stored below the home directory.
ENV HOME=/home/nonroot
WORKDIR /home/nonroot
ENTRYPOINT ["/usr/local/bin/countersign"]
