# vram-exporter. The runtime image needs a glibc no older than the build image's.
ARG BUILD_IMAGE=rust:1.95-slim-bookworm
ARG RUNTIME_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /src

# Builds only the dependencies, with empty crates as placeholders: this layer stays cached until a manifest or the lock file changes.
COPY Cargo.toml Cargo.lock ./
COPY crates/cgroup-owner/Cargo.toml crates/cgroup-owner/
COPY crates/cuda-probe/Cargo.toml crates/cuda-probe/
COPY crates/gpu-calls/Cargo.toml crates/gpu-calls/
COPY crates/gpu-metrics/Cargo.toml crates/gpu-metrics/
COPY crates/gpu-readings/Cargo.toml crates/gpu-readings/
COPY crates/nvml-sim/Cargo.toml crates/nvml-sim/
COPY crates/pod-resources/Cargo.toml crates/pod-resources/
COPY crates/process-name/Cargo.toml crates/process-name/
COPY crates/text-and-sizes/Cargo.toml crates/text-and-sizes/
COPY crates/vram/Cargo.toml crates/vram/
COPY crates/web-client/Cargo.toml crates/web-client/
COPY crates/web-config/Cargo.toml crates/web-config/
# These packages are not built, but the workspace and its lock file list them.
COPY lab/bench/Cargo.toml lab/bench/
COPY tests/exposition/Cargo.toml tests/exposition/
COPY tests/fake-libcuda/Cargo.toml tests/fake-libcuda/
COPY tests/generated-files/Cargo.toml tests/generated-files/
COPY tests/judges/guard/Cargo.toml tests/judges/guard/
COPY tests/properties/Cargo.toml tests/properties/
COPY tests/skips/Cargo.toml tests/skips/
RUN for manifest in crates/*/Cargo.toml lab/*/Cargo.toml tests/*/Cargo.toml tests/judges/*/Cargo.toml; do \
        folder="$(dirname "$manifest")/src"; mkdir -p "$folder/bin" && touch "$folder/lib.rs" || exit; \
    done \
    && touch lab/bench/static_file.rs tests/judges/guard/src/bin/work.rs \
    && mkdir -p src benches tests/it tests/skips/tests \
    && echo 'fn main() {}' > src/main.rs && cp src/main.rs crates/vram/src/main.rs \
    && touch src/lib.rs benches/attribution.rs benches/exposition.rs tests/it/main.rs tests/skips/tests/total.rs \
    && cargo build --release --locked

COPY src src
COPY crates crates
# Copied files may be older than the empty crates, and cargo compares modification times to decide what to build.
RUN find src crates -name '*.rs' -exec touch {} + \
    && cargo build --release --locked

FROM ${RUNTIME_IMAGE}

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="vram-exporter" \
      org.opencontainers.image.description="Prometheus exporter for the memory of NVIDIA GPUs: true peaks, owners, and no invented values" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

COPY --from=build /src/target/release/vram-exporter /src/target/release/vram /usr/bin/

# Read by NVIDIA's container runtime: all GPUs, and only the parts of the driver that NVML needs.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility

# The user nobody, as a number, so that Kubernetes can verify that the user is not root.
USER 65534:65534
EXPOSE 9836
ENTRYPOINT ["/usr/bin/vram-exporter"]
