# An image in which the fused kernels that a model needs are built, warmed and judged; docs/image-gate.md explains it.
#
#   docker build --build-arg MODEL=qwen --build-arg TARGETS="h200 a100" --build-arg DRIVER=580 .
#
# The pins come from `kerncheck pins`: the newest versions that go together for MODEL on TARGETS. A torch that is not on the
# public index (one with a local tag such as +cu126) needs TORCH_INDEX, the address of an index that has it.
ARG PYTHON=3.12
ARG DEBIAN=bookworm
# The toolkit that compiles causal-conv1d: its major version must be that of the pinned torch, which the builder tests.
ARG CUDA=13.0.2
ARG CUDA_OS=ubuntu22.04


FROM nvidia/cuda:${CUDA}-devel-${CUDA_OS} AS toolkit


FROM python:${PYTHON}-slim-${DEBIAN} AS base
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore


# Everything is downloaded or built here, once, and leaves as wheels: the final stage installs these files and no others.
FROM base AS builder
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ARG MODEL=qwen
ARG TARGETS=h200
ARG DRIVER=""
ARG TORCH=2.14
ARG TORCH_INDEX=""
ARG MAX_JOBS=4
WORKDIR /build

# hadolint ignore=DL3008 # the distribution's compiler is the one that the base image's C library belongs to
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ libc6-dev \
 && rm -rf /var/lib/apt/lists/*

COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY matrices matrices
RUN pip wheel --wheel-dir /wheels/kerncheck . \
 && python -m venv /opt/kerncheck \
 && /opt/kerncheck/bin/pip install --no-index --find-links /wheels/kerncheck kerncheck

# One set of pins for all targets, or an end here, with the rows that forbid it.
RUN set -- && for target in ${TARGETS}; do set -- "$@" --gpu "${target}"; done \
 && python="$(python -c 'import platform; print(platform.python_version())')" \
 && /opt/kerncheck/bin/kerncheck pins --model "${MODEL}" "$@" --python "${python}" --machine "$(uname -m)" \
      ${TORCH:+--torch "${TORCH}"} ${DRIVER:+--driver "${DRIVER}"} --output /wheels/constraints.txt \
 && cat /wheels/constraints.txt

# torch first and alone: what is built next is built against exactly this one.
# hadolint ignore=DL3013 # versions stand in the constraints file
RUN pip wheel --wheel-dir /wheels/stack --constraint /wheels/constraints.txt ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} torch \
 && pip install --no-index --find-links /wheels/stack torch \
 && pip install ninja packaging setuptools wheel

COPY --from=toolkit /usr/local/cuda /usr/local/cuda
ENV CUDA_HOME=/usr/local/cuda
RUN nvcc="$("${CUDA_HOME}/bin/nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')" \
 && torch="$(python -c 'import torch; print(torch.version.cuda.split(".")[0])')" \
 && { [ "${nvcc}" = "${torch}" ] || { echo "nvcc is of CUDA ${nvcc}, torch of CUDA ${torch}: set the argument CUDA" >&2; exit 1; }; }

# Without build isolation, so that the build sees the pinned torch; never a prebuilt file that its setup would guess.
# hadolint ignore=DL3013 # versions stand in the constraints file
RUN CAUSAL_CONV1D_FORCE_BUILD=TRUE MAX_JOBS="${MAX_JOBS}" pip wheel --no-build-isolation --no-deps --wheel-dir /wheels/stack \
      --constraint /wheels/constraints.txt causal-conv1d
# Everything that these three need at run time; of causal-conv1d the wheel just built, never another one.
# hadolint ignore=DL3013,DL3059 # versions stand in the constraints file; a layer of its own keeps the long build
RUN pip wheel --wheel-dir /wheels/stack --find-links /wheels/stack --only-binary causal-conv1d \
      --constraint /wheels/constraints.txt causal-conv1d 'flash-linear-attention[cuda]' transformers


FROM base AS runtime
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ARG MODEL=qwen
ARG TARGETS=h200
ARG DRIVER=""
ARG WARM=""

# Slim, with what Triton compiles its launcher with at the first launch: gcc and the C library's headers. Python's own are in
# the base image; libcuda is mounted by the container toolkit on the node.
# hadolint ignore=DL3008 # the distribution's compiler is the one that the base image's C library belongs to
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*

# hadolint ignore=DL3013 # the folder holds one version of each
RUN --mount=type=bind,from=builder,source=/wheels,target=/wheels \
    pip install --no-index --find-links /wheels/stack torch causal-conv1d 'flash-linear-attention[cuda]' transformers \
 && python -m venv /opt/kerncheck \
 && /opt/kerncheck/bin/pip install --no-index --find-links /wheels/kerncheck kerncheck \
 && ln -s /opt/kerncheck/bin/kerncheck /usr/local/bin/kerncheck

RUN useradd --create-home --uid 10001 app
ENV TRITON_CACHE_DIR=/home/app/.triton/cache \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /home/app
USER 10001

# Compiles every configuration for the targets; the node still benchmarks them once. WARM holds further options.
# hadolint ignore=SC2086 # the words of WARM are options
RUN set -- && for target in ${TARGETS}; do set -- "$@" --target "${target}"; done \
 && kerncheck warm --model "${MODEL}" "$@" ${WARM} --python /usr/local/bin/python

# The gate. It stays the last step, so that nothing changes what was judged.
# hadolint ignore=DL3059 # a step of its own, so that a failure says no more than the verdict
RUN set -- && for target in ${TARGETS}; do set -- "$@" --target "${target}"; done \
 && kerncheck verify --model "${MODEL}" --profile image "$@" ${DRIVER:+--driver "${DRIVER}"} --python /usr/local/bin/python
