# vram-exporter. The runtime image needs glibc, no older than the build image's.
ARG BUILD_IMAGE=rust:1.95-slim-bookworm
ARG RUNTIME_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /src

# The dependencies alone, built around empty crates: this layer stands until a manifest or the lock file changes.
COPY Cargo.toml Cargo.lock ./
COPY crates/nvml-sim/Cargo.toml crates/nvml-sim/Cargo.toml
RUN mkdir -p src benches tests/bench crates/nvml-sim/src \
    && echo 'fn main() {}' > src/main.rs \
    && touch src/lib.rs benches/attribution.rs benches/exposition.rs tests/bench/static_file.rs tests/bench/guard_work.rs crates/nvml-sim/src/lib.rs \
    && cargo build --release --locked

COPY src src
COPY crates/nvml-sim crates/nvml-sim
# Copied files may be older than the empty crates; cargo goes by time.
RUN find src crates/nvml-sim -name '*.rs' -exec touch {} + \
    && cargo build --release --locked

FROM ${RUNTIME_IMAGE}

ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="vram-exporter" \
      org.opencontainers.image.description="Prometheus exporter for the memory of NVIDIA GPUs: true peaks, who holds it, and nothing invented" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

COPY --from=build /src/target/release/vram-exporter /usr/bin/vram-exporter

# Read by NVIDIA's container runtime: all GPUs, and of the driver only what NVML needs.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility

# nobody; a number, so that a cluster can see that it is not root.
USER 65534:65534
EXPOSE 9836
ENTRYPOINT ["/usr/bin/vram-exporter"]
