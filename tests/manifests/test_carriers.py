"""Each carrier: the words, their lines, the devices, the copies that its file says."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from kvcalc.checks.gather import Options, gather
from kvcalc.core.errors import InputError
from kvcalc.manifests import Folder, read_paths, read_source
from kvcalc.manifests.carriers import vendor_quirks, vendors
from kvcalc.manifests.commands import read as read_command
from kvcalc.manifests.found import GpuRequest, Invocation, Word


def read(text: str, name: str = "x.yaml", **beside: str) -> list[Invocation]:
    files = {path.replace("__", "/").replace("_dot_", "."): body for path, body in beside.items()}
    return read_source(name, dedent(text).lstrip("\n"), Folder(None, files))


def one(text: str, name: str = "x.yaml", **beside: str) -> Invocation:
    (found,) = read(text, name, **beside)
    return found


def said(found: Invocation) -> str:
    return " ".join(word.text for word in found.words)


def lines(found: Invocation) -> list[int]:
    return [word.line for word in found.words]


DEPLOYMENT = """
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: chat}
    spec:
      replicas: 3
      template:
        spec:
          nodeSelector:
            cloud.google.com/gke-accelerator: nvidia-l4
          initContainers:
            - name: fetch
              image: vllm/vllm-openai:v0.11.0
              command: [vllm, serve, no]
          containers:
            - name: server
              image: vllm/vllm-openai:v0.11.0
              args:
                - --model=$(MODEL)
                - --max-model-len
                - "8192"
              env:
                - {name: MODEL, value: org/name}
                - name: HF_TOKEN
                  valueFrom: {secretKeyRef: {name: s, key: k}}
              resources:
                limits: {nvidia.com/gpu: 2}
            - name: proxy
              image: envoy:1
"""


def test_deployment() -> None:
    """Args, the kubelet's variables, devices, copies; init containers are not looked at."""
    found = one(DEPLOYMENT)

    assert (found.name, found.carrier, found.line, found.replicas) == ("chat", "Deployment", 1, 3)
    assert said(found) == "--model=org/name --max-model-len 8192"
    assert lines(found) == [18, 19, 20]
    assert found.words[0].variables == ("MODEL",)
    assert found.image == Word("vllm/vllm-openai:v0.11.0", 16)
    assert found.env["HF_TOKEN"].unresolved == ("HF_TOKEN",)
    assert (found.gpu.devices, found.gpu.resource, found.gpu.line) == (2, "nvidia.com/gpu", 26)
    assert found.gpu.product == Word("nvidia-l4", 9)
    assert found.gpu.product_key == "cloud.google.com/gke-accelerator"


def test_a_script_in_a_container() -> None:
    """Literal and folded blocks keep the lines of their words; `$@` is what follows the script."""
    found = one("""
        kind: Pod
        metadata: {name: p}
        spec:
          containers:
            - image: vllm/vllm-openai:v0.11.0
              command:
                - bash
                - -c
                - |
                  set -e
                  exec vllm serve "$M" \\
                    --port $PORT "$@"
                - --
              args: [--max-model-len, "4096"]
              env: [{name: M, value: org/name}]
        """)

    assert said(found) == "vllm serve org/name --port $PORT --max-model-len 4096"
    assert lines(found)[:5] == [11, 11, 11, 12, 12]
    assert found.words[4].unresolved == ("PORT",)
    folded = one("""
        kind: Pod
        spec:
          containers:
            - image: x
              command: [sh, -c]
              args:
                - >-
                  echo hello;
                  vllm serve a/b
                  --max-model-len 4096
        """)
    assert lines(folded) == [9, 9, 9, 10, 10]


def test_config_maps_are_environment_and_files() -> None:
    """Of the same file: envFrom, a key, and a volume."""
    found = one("""
        kind: ConfigMap
        metadata: {name: c}
        data:
          MODEL: org/name
          engine.yaml: |
            max-model-len: 4096
        ---
        kind: StatefulSet
        metadata: {name: s}
        spec:
          template:
            spec:
              containers:
                - image: vllm/vllm-openai:v0.11.0
                  args: [--model, $(MODEL), --config, /etc/e/engine.yaml]
                  envFrom: [{configMapRef: {name: c}}]
                  volumeMounts: [{name: v, mountPath: /etc/e}]
              volumes: [{name: v, configMap: {name: c}}]
        """)

    assert said(found) == "--model org/name --config /etc/e/engine.yaml"
    assert found.attached["/etc/e/engine.yaml"].text == "max-model-len: 4096\n"
    assert found.attached["/etc/e/engine.yaml"].line == 6


STARTED = """
    kind: ConfigMap
    metadata: {{name: c}}
    data:
      start.sh: |
        {first}
        exec vllm serve $MODEL --max-model-len 4096 "$@"
    ---
    kind: Pod
    metadata: {{name: p}}
    spec:
      containers:
        - image: vllm/vllm-openai:v0.11.0
          {command}
          env: [{{name: MODEL, value: org/name}}]
          volumeMounts: [{{name: v, mountPath: /s}}]
          resources: {{limits: {{nvidia.com/gpu: 1}}}}
      volumes: [{{name: v, configMap: {{name: c}}}}]
    """


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("command: [sh, /s/start.sh]", ""),
        ("command: [/s/start.sh, --port, '1']", " --port 1"),
        ("command: [bash, -ex]\n          args: [/s/start.sh, --port, '1']", " --port 1"),
        ("command: [/bin/sh, -c, /s/start.sh --port 1]", " --port 1"),
        ("command: [sh, -c, exec bash /s/start.sh]", ""),
        ("command: [sh, -c, . /s/start.sh]", ""),
    ],
)
def test_a_mounted_script_is_run(command: str, more: str) -> None:
    """By a shell, by its path, or out of a script of one command: with what it is given."""
    found = one(STARTED.format(command=command, first="#!/bin/sh"))

    assert said(found) == f"vllm serve org/name --max-model-len 4096{more}"
    assert [word.line for word in found.words if word.text == "4096"] == [6]


@pytest.mark.parametrize(
    ("command", "first"),
    [
        ("command: [/s/start.sh]", "set -e"),  # neither a program nor a script by its first line
        ("command: [cat, /s/start.sh]", "#!/bin/sh"),
        ("command: [sh, /other/start.sh]", "#!/bin/sh"),
    ],
)
def test_a_mounted_file_that_is_not_run_starts_nothing(command: str, first: str) -> None:
    assert not [
        each for each in read(STARTED.format(command=command, first=first)) if "serve" in said(each)
    ]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ("limits: {nvidia.com/gpu: '4'}", GpuRequest(devices=4, resource="nvidia.com/gpu")),
        ("limits: {amd.com/gpu: 1}", GpuRequest(devices=1, resource="amd.com/gpu")),
        ("limits: {gpu.intel.com/i915: 1}", GpuRequest(devices=1, resource="gpu.intel.com/i915")),
        ("limits: {habana.ai/gaudi: 8}", GpuRequest(devices=8, resource="habana.ai/gaudi")),
        ("limits: {google.com/tpu: 8}", GpuRequest(devices=8, resource="google.com/tpu")),
        ("limits: {huawei.com/Ascend910: 1}",
         GpuRequest(devices=1, resource="huawei.com/Ascend910")),
        ("limits: {nvidia.com/gpu.shared: 1}",
         GpuRequest(devices=1, resource="nvidia.com/gpu.shared", shared=True)),
        ("limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1000, nvidia.com/gpumem-percentage: 50}",
         GpuRequest(devices=1, resource="nvidia.com/gpu", memory_bytes=1000 * 2**20,
                    memory_percent=50)),
        ("limits: {nvidia.com/gpu: 0.5}", GpuRequest(fraction="0.5", resource="nvidia.com/gpu")),
        ("limits: {cpu: 4}", GpuRequest()),
    ],
)  # fmt: skip
def test_resources(resources: str, expected: GpuRequest) -> None:
    """Every key that counts devices, or says what one of them has."""
    found = one(f"""
        kind: Pod
        spec:
          containers:
            - image: vllm/vllm-openai:v0.11.0
              args: [--model, a/b]
              resources: {{{resources}}}
        """)

    assert found.gpu._replace(line=0) == expected


@pytest.mark.parametrize(
    ("resources", "codes"),
    [
        ("{limits: {nvidia.com/gpu: 0.5}}", ["fractional-gpu"]),
        ("{limits: {nvidia.com/gpu: 2}, requests: {nvidia.com/gpu: 1}}", ["gpu-request-not-limit"]),
        ("{requests: {nvidia.com/gpu: 1}}", ["gpu-request-without-limit"]),
        ("{limits: {gpu: 1}}", ["unqualified-gpu"]),
        ("{limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 1}}", []),
    ],
)
def test_what_is_wrong_with_resources(resources: str, codes: list[str]) -> None:
    """Each with its line."""
    found = one(f"""
        kind: Pod
        spec:
          containers:
            - image: vllm/vllm-openai:v0.11.0
              args: [--model, a/b]
              resources: {resources}
        """)

    assert [finding.code for finding in found.findings] == codes
    assert all(finding.line == 6 for finding in found.findings)


def test_two_containers_that_ask_for_devices() -> None:
    """Both are read; both say so."""
    found = read("""
        kind: Pod
        metadata: {name: p}
        spec:
          containers:
            - {name: a, image: vllm/vllm-openai:v1, args: [--model, a], resources: {limits: {nvidia.com/gpu: 1}}}
            - {name: b, image: vllm/vllm-openai:v1, args: [--model, b], resources: {limits: {nvidia.com/gpu: 1}}}
        """)  # noqa: E501

    assert [each.name for each in found] == ["p/a", "p/b"]
    assert {f.code for each in found for f in each.findings} == {"two-containers-with-gpus"}


def test_products_of_affinity_and_tolerations() -> None:
    """Required terms, all of their values."""
    found = one("""
        kind: Pod
        spec:
          affinity:
            nodeAffinity:
              requiredDuringSchedulingIgnoredDuringExecution:
                nodeSelectorTerms:
                  - matchExpressions:
                      - {key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-L4, NVIDIA-A10]}
          containers:
            - {image: vllm/vllm-openai:v1, args: [--model, a]}
        """)

    assert found.gpu.product == Word("NVIDIA-L4", 8)
    assert found.gpu.choices == (Word("NVIDIA-A10", 8),)


def test_leader_worker_set() -> None:
    """One server over the group, the leader's command with what LeaderWorkerSet sets."""
    found = one("""
        kind: LeaderWorkerSet
        metadata: {name: big}
        spec:
          replicas: 2
          leaderWorkerTemplate:
            size: 4
            leaderTemplate:
              spec:
                containers:
                  - image: vllm/vllm-openai:v0.11.0
                    command: [sh, -c, "ray start; vllm serve a/b -tp 8 -pp $(LWS_GROUP_SIZE)"]
                    resources: {limits: {nvidia.com/gpu: 8}}
            workerTemplate:
              spec:
                containers:
                  - image: vllm/vllm-openai:v0.11.0
                    command: [sh, -c, "ray start --block"]
                    resources: {limits: {nvidia.com/gpu: 8}}
        """)

    assert said(found) == "vllm serve a/b -tp 8 -pp 4"
    assert (found.replicas, found.nodes, found.gpu.devices) == (2, 4, 8)


def test_ray_cluster() -> None:
    """The head's server over head and workers."""
    found = one("""
        kind: RayCluster
        metadata: {name: r}
        spec:
          headGroupSpec:
            template: {spec: {containers: [{image: x, args: [vllm serve a/b], command: [bash, -c],
              resources: {limits: {nvidia.com/gpu: 8}}}]}}
          workerGroupSpecs:
            - replicas: 2
              template: {spec: {containers: [{image: x, command: [sleep], resources:
                {limits: {nvidia.com/gpu: 8}}}]}}
        """)

    assert (said(found), found.nodes, found.gpu.devices) == ("vllm serve a/b", 3, 8)


def test_roles_of_a_kind_that_is_not_known() -> None:
    """Pods are found wherever they stand; groups of pods are nodes."""
    found = read("""
        kind: StormService
        metadata: {name: s}
        spec:
          replicas: 1
          template:
            spec:
              roles:
                - name: prefill
                  replicas: 2
                  podGroupSize: 2
                  template: {spec: {containers: [{image: x, command: [vllm, serve, a]}]}}
                - name: router
                  template: {spec: {containers: [{image: router, command: [run]}]}}
                - name: decode
                  template: {spec: {containers: [{image: x, command: [vllm, serve, b]}]}}
        """)

    assert [(f.name, f.replicas, f.nodes) for f in found] == [
        ("s/prefill", 2, 2),
        ("s/decode", 1, 1),
    ]


def test_kserve() -> None:
    """The model's URI, args, instance type; a runtime of the same file is its container."""
    found = one("""
        apiVersion: serving.kserve.io/v1beta1
        kind: InferenceService
        metadata: {name: k}
        spec:
          predictor:
            minReplicas: 2
            nodeSelector: {node.kubernetes.io/instance-type: g5.8xlarge}
            model:
              modelFormat: {name: huggingface}
              storageUri: hf://org/name
              args: [--max-model-len=1024]
              resources: {limits: {nvidia.com/gpu: 1}}
        """)

    assert said(found) == "python -m huggingfaceserver --max-model-len=1024 --model org/name"
    assert (found.replicas, found.gpu.product) == (2, Word("g5.8xlarge", 7))


def test_llm_inference_service() -> None:
    """Flags of `parallelism`; prefill is a server of its own; devices of a claim."""
    template = "{containers: [{name: main, args: [--dtype, half]}]}"
    found = read(f"""
        apiVersion: serving.kserve.io/v1alpha2
        kind: LLMInferenceService
        metadata:
          name: l
          annotations: {{serving.kserve.io/exp-dra-device-count: "2"}}
        spec:
          model: {{uri: hf://org/name}}
          replicas: 2
          parallelism: {{data: 16, dataLocal: 8, tensor: 1, expert: true}}
          template: {template}
          worker: {template}
          prefill: {{replicas: 1, template: {template}}}
        """)

    assert [each.name for each in found] == ["l", "l/prefill"]
    assert said(found[0]) == (
        "vllm serve org/name --tensor-parallel-size 1 --data-parallel-size 16 "
        "--data-parallel-size-local 8 --enable-expert-parallel --dtype half"
    )
    assert (found[0].replicas, found[0].nodes, found[0].gpu.devices) == (2, 2, 2)


def test_production_stack() -> None:
    """Keys become flags; extraArgs outside vllmConfig is not read; half a device is told."""
    found = one("""
        servingEngineSpec:
          modelSpec:
            - name: a
              repository: vllm/vllm-openai
              tag: v0.11.0
              modelURL: org/name
              replicaCount: 2
              requestGPU: 0.5
              vllmConfig:
                maxModelLen: 1024
                gpuMemoryUtilization: "0.4"
                enablePrefixCaching: true
                extraArgs: [--swap-space, 0]
              lmcacheConfig: {cudaVisibleDevices: "1"}
              extraArgs: [--max-num-seqs, 4]
        """)

    words = said(found)
    assert words.startswith("vllm serve org/name")
    for part in (
        "--max-model-len 1024",
        "--gpu-memory-utilization 0.4",
        "--enable-prefix-caching",
        "--swap-space 0",
    ):
        assert part in words
    assert "--max-num-seqs" not in words
    assert (found.replicas, found.gpu.fraction, found.gpu.visible) == (2, "0.5", ("1",))
    assert {(f.code, f.line) for f in found.findings} == {
        ("fractional-gpu", 8),
        ("ignored-extra-args", 15),
    }


def test_modelservice() -> None:
    """Devices are tensor x dataLocal, whatever the container asks for."""
    found = one("""
        modelArtifacts: {name: org/name, uri: "hf://{{ .Values.modelArtifacts.name }}"}
        decode:
          replicas: 2
          parallelism: {tensor: 2, dataLocal: 2}
          containers:
            - {name: vllm, image: x, modelCommand: vllmServe, args: [--max-num-seqs, 4],
               resources: {limits: {nvidia.com/gpu: 1}}}
        prefill: {create: false}
        """)

    assert said(found).startswith("vllm serve org/name")
    assert "--tensor-parallel-size 2" in said(found)
    assert (found.gpu.devices, found.replicas) == (4, 2)
    assert [f.code for f in found.findings] == ["overwritten-gpu-count"]


def test_ai_on_eks() -> None:
    """ModelParameters are flags; the card is the instance type's."""
    found = one("""
        model: org/name
        modelParameters: {maxModelLen: 1024, tensorParallelSize: 4, pipelineParallelSize: 2}
        inference:
          framework: lws-vllm
          modelServer:
            image: {repository: x, tag: y}
            deployment:
              instanceType: g6.24xlarge
              resources: {gpu: {limits: {nvidia.com/gpu: 4}}}
        """)

    assert said(found) == (
        "vllm serve org/name --max-model-len 1024 --tensor-parallel-size 4 "
        "--pipeline-parallel-size 2"
    )
    assert (found.nodes, found.gpu.devices) == (2, 4)
    assert found.gpu.product == Word("g6.24xlarge", 8)


def test_kubeai_kaito_and_model_claims() -> None:
    """Operators with keys of their own."""
    kubeai = one("""
        apiVersion: kubeai.org/v1
        kind: Model
        metadata: {name: m}
        spec: {url: "hf://org/name", engine: VLLM, args: [--max-num-seqs=4],
          resourceProfile: "nvidia-gpu-l4:2", minReplicas: 1}
        """)
    kaito = one("""
        kind: ConfigMap
        metadata: {name: c}
        data:
          inference_config.yaml: |
            vllm:
              max-model-len: 4096
              enable-prefix-caching: false
        ---
        apiVersion: kaito.sh/v1beta1
        kind: Workspace
        metadata: {name: w}
        resource: {instanceType: Standard_NC48ads_A100_v4, count: 2}
        inference: {preset: {name: phi-4}, config: c}
        """)
    claim = one("""
        kind: ModelClaim
        metadata: {name: c}
        spec: {artifactURL: "huggingface://org/name", engine: vllm,
          engineConfig: {args: {--max-model-len: "2048"}}}
        """)

    assert said(kubeai) == "vllm serve org/name --max-num-seqs=4"
    assert (kubeai.gpu.devices, kubeai.gpu.product) == (2, Word("nvidia-gpu-l4", 5))
    assert said(kaito) == (
        "vllm serve phi-4 --max-model-len 4096 --no-enable-prefix-caching "
        "--tensor-parallel-size=2 --pipeline-parallel-size=2"  # of the machines: KAITO's own
    )
    assert [w.line for w in kaito.words[3:6]] == [6, 6, 7]
    assert (kaito.gpu.devices, kaito.nodes) == (2, 2)
    assert said(claim) == "vllm serve org/name --max-model-len 2048"


def test_dynamo() -> None:
    """Services with a bare `gpu`; the front end is no server."""
    found = one("""
        kind: DynamoGraphDeployment
        metadata: {name: d}
        spec:
          services:
            Frontend:
              extraPodSpec: {mainContainer: {image: ai-dynamo/sglang-runtime:1, command: [python3, -m, dynamo.frontend]}}
            Worker:
              replicas: 2
              resources: {limits: {gpu: "8"}}
              extraPodSpec:
                mainContainer: {image: ai-dynamo/sglang-runtime:1, command: [python3, -m, dynamo.sglang], args: [--tp, "8"]}
        """)  # noqa: E501

    assert (found.name, said(found)) == ("d/Worker", "python3 -m dynamo.sglang --tp 8")
    assert (found.replicas, found.gpu.devices, found.findings) == (2, 8, ())


def test_llmkube_is_told_from_kserve_by_its_group() -> None:
    """Slots and context are llama-server's flags."""
    found = one("""
        apiVersion: inference.llmkube.dev/v1alpha1
        kind: Model
        metadata: {name: q}
        spec: {source: https://x/y.gguf, hardware: {gpu: {count: 1}}}
        ---
        apiVersion: inference.llmkube.dev/v1alpha1
        kind: InferenceService
        metadata: {name: q}
        spec: {modelRef: q, contextSize: 32768, parallelSlots: 2, extraArgs: [--jinja]}
        """)

    assert said(found) == ("llama-server -m https://x/y.gguf --ctx-size 32768 --parallel 2 --jinja")


def test_ray_serve() -> None:
    """In a RayService's text, with the lines of the file."""
    found = one("""
        kind: RayService
        metadata: {name: r}
        spec:
          serveConfigV2: |
            applications:
              - name: llm
                args:
                  llm_configs:
                    - model_loading_config: {model_id: a, model_source: org/name}
                      accelerator_type: L4
                      engine_kwargs:
                        max_model_len: 1024
                        enforce_eager: true
                        tensor_parallel_size: 2
                      deployment_config: {autoscaling_config: {min_replicas: 3}}
        """)

    assert said(found) == (
        "vllm serve org/name --max-model-len 1024 --enforce-eager --tensor-parallel-size 2"
    )
    assert [w.line for w in found.words[3:]] == [12, 12, 13, 14, 14]
    assert (found.replicas, found.gpu.devices, found.gpu.product) == (3, 2, Word("L4", 10))


def test_sky_pilot() -> None:
    """Its own variables, any of several accelerators, nodes."""
    found = one("""
        envs: {MODEL: org/name}
        resources: {accelerators: {H200: 8, H100: 8}}
        num_nodes: 2
        run: |
          if [ "$SKYPILOT_NODE_RANK" == "0" ]; then
            vllm serve $MODEL -tp $((SKYPILOT_NUM_GPUS_PER_NODE * SKYPILOT_NUM_NODES))
          fi
        """)

    assert said(found) == "vllm serve org/name -tp 16"
    assert (found.nodes, found.gpu.devices) == (2, 8)
    assert [w.text for w in (found.gpu.product or Word(""), *found.gpu.choices)] == ["H200", "H100"]


def test_llama_swap() -> None:
    """Macros, environment, and commands over several lines."""
    found = read("""
        macros: {srv: "/app/llama-server --port ${PORT}"}
        models:
          a:
            cmd: |
              ${srv}
              -m /a.gguf
              # not this
              -c 4096
            env: ["CUDA_VISIBLE_DEVICES=1"]
          b: {cmd: "sd-server --x"}
        """)

    assert [each.name for each in found] == ["a"]
    assert said(found[0]) == "/app/llama-server --port ${PORT} -m /a.gguf -c 4096"
    assert found[0].gpu.visible == ("1",)


COMPOSE = """
    x-base: &base
      image: vllm/vllm-openai:${TAG:-v0.11.0}
      environment: {HF_TOKEN: "${HF_TOKEN}", SEQS: 4}
    services:
      a:
        <<: *base
        command: >
          --model ${MODEL}
          --max-num-seqs ${SEQS:-8}
          --api-key $$KEY
        deploy:
          resources:
            reservations:
              devices: [{driver: nvidia, count: all, capabilities: [gpu]}]
      db: {image: postgres}
"""


def test_compose() -> None:
    """Anchors, defaults, `.env`, `$$`; a value of .env is known as a variable's."""
    found = one(COMPOSE, "compose.yaml", _dot_env="MODEL=org/name\nSEQS=16\n")

    assert said(found) == "--model org/name --max-num-seqs 16 --api-key $KEY"
    assert lines(found) == [8, 8, 9, 9, 10, 10]
    assert found.words[1].variables == ("MODEL",)
    assert (found.image or Word("")).text == "vllm/vllm-openai:v0.11.0"
    assert found.env["HF_TOKEN"].unresolved == ("HF_TOKEN",)
    assert (found.gpu.every, found.line) == (True, 5)


@pytest.mark.parametrize(
    ("service", "devices", "visible", "every"),
    [
        ("gpus: all", None, None, True),
        ("deploy: {resources: {reservations: {devices: [{count: 2, capabilities: [gpu]}]}}}",
         2, None, False),
        ("gpus: [{device_ids: ['0', '3'], capabilities: [gpu]}]", 2, ("0", "3"), False),
        ("environment: [CUDA_VISIBLE_DEVICES=-1]", None, (), False),
        ("environment: {NVIDIA_VISIBLE_DEVICES: all}", None, None, True),
        ("devices: [/dev/kfd, /dev/dri]", None, None, True),
        ("devices: [nvidia.com/gpu=all]", None, None, True),
    ],
)  # fmt: skip
def test_compose_devices(
    service: str, devices: int | None, visible: tuple[str, ...] | None, *, every: bool
) -> None:
    """Counted, named, all, or hidden."""
    found = one(
        f"services: {{a: {{image: 'vllm/vllm-openai:v1', command: [--model, x], {service}}}}}"
    )

    assert (found.gpu.devices, found.gpu.visible, found.gpu.every) == (devices, visible, every)


def test_dockerfile() -> None:
    """The last stage, with ENV and ARG put in; JSON and shell forms."""
    found = one(
        """
        ARG TAG=v0.5
        FROM base AS build
        CMD ["vllm", "serve", "no"]
        FROM lmsysorg/sglang:${TAG}
        ENV MODEL=org/name \\
            TP=8
        # a comment
        CMD exec python3 -m sglang.launch_server --model-path ${MODEL} \\
            # another
            --tp $TP --port $PORT
        """,
        "Dockerfile",
    )

    assert (found.carrier, (found.image or Word("")).text) == ("Dockerfile", "lmsysorg/sglang:v0.5")
    assert (
        said(found) == "python3 -m sglang.launch_server --model-path org/name --tp 8 --port $PORT"
    )
    assert found.words[-1].unresolved == ("PORT",)
    listed = one(
        'FROM vllm/vllm-openai:v1\nENTRYPOINT ["vllm", \\\n "serve"]\nCMD ["a/b", "-q", "x"]\n',
        "x.Dockerfile",
    )
    assert said(listed) == "vllm serve a/b -q x"
    assert lines(listed) == [2, 3, 4, 4, 4]


def test_docker_run() -> None:
    """Options before the image, the entry point around it, devices, environment."""
    found = one(
        """
        docker run -d --gpus '"device=0,1"' --shm-size 8g -v /m:/m -p 80:80 --name llm \\
          -e A=1 --entrypoint python3 vllm/vllm-openai:v0.11.0 \\
          -m vllm.entrypoints.openai.api_server --model a/b
        """,
        "run.sh",
    )

    assert said(found) == "python3 -m vllm.entrypoints.openai.api_server --model a/b"
    assert lines(found) == [2, 3, 3, 3, 3]
    assert (found.name, found.gpu.devices, found.gpu.visible) == ("llm", 2, ("0", "1"))
    assert found.env["A"].text == "1"


@pytest.mark.parametrize(
    "command",
    [
        "sudo -E nohup vllm serve a/b > log 2>&1 &",
        "HF_HOME=/x vllm serve a/b",
        "bash -lc 'vllm serve a/b'",
        "ssh host 'vllm serve a/b'",
        "tmux new -d -s x 'vllm serve a/b'",
        "env A=1 numactl -N 0 vllm serve a/b",
        "bash <<EOF\nvllm serve a/b\nEOF",
        "exec vllm serve a/b | tee log",
    ],
)
def test_what_stands_before_a_server(command: str) -> None:
    """Wrappers are looked through."""
    found = one(f"#!/bin/sh\n{command}\n", "run.sh")

    assert said(found).endswith("vllm serve a/b")


@pytest.mark.parametrize(
    "command",
    [
        "echo vllm serve a/b",
        "pip install vllm",
        "vllm bench serve",
        "ollama pull x",
        "# vllm serve x",
    ],
)
def test_what_starts_no_server(command: str) -> None:
    """Mentioned is not started: one line, which says what is read."""
    with pytest.raises(InputError, match="starts no server") as caught:
        read(f"{command}\n", "run.sh")

    assert "shell scripts" in caught.value.hint


def test_files_that_scripts_write() -> None:
    """Units, Compose files and manifests in here-documents, with the lines of the script."""
    found = read(
        """
        M=org/name
        cat > /etc/systemd/system/llm.service <<EOF
        [Service]
        Environment="PORT=80"
        ExecStart=/usr/bin/vllm serve $M --port \\${PORT}
        EOF
        kubectl apply -f - <<'EOF'
        kind: Pod
        metadata: {name: p}
        spec: {containers: [{image: x, command: [vllm, serve, a/b]}]}
        EOF
        """,
        "install.sh",
    )

    assert [(f.carrier, f.name, said(f)) for f in found] == [
        ("systemd", "llm", "/usr/bin/vllm serve org/name --port 80"),
        ("Pod", "p", "vllm serve a/b"),
    ]
    assert found[0].line == 5
    assert lines(found[1]) == [10, 10, 10]


def test_units_and_quadlets() -> None:
    """Continued lines keep their own; what no Environment= sets is unresolved."""
    unit = one(
        """
        [Service]
        Environment=CUDA_VISIBLE_DEVICES=0 M=org/name
        ExecStart=/usr/bin/vllm serve ${M} \\
          --max-model-len ${LEN}
        """,
        "llm.service",
    )
    quadlet = one(
        """
        [Container]
        Image=docker.io/vllm/vllm-openai:v0.11.0
        AddDevice=nvidia.com/gpu=all
        Exec=--model a/b \\
          --dtype half
        """,
        "llm.container",
    )

    assert said(unit) == "/usr/bin/vllm serve org/name --max-model-len ${LEN}"
    assert (unit.name, lines(unit)) == ("llm", [3, 3, 3, 4, 4])
    assert (unit.words[-1].unresolved, unit.gpu.visible) == (("LEN",), ("0",))
    assert (said(quadlet), lines(quadlet)) == ("--model a/b --dtype half", [4, 4, 5, 5])
    assert quadlet.gpu.every


def test_ollama() -> None:
    """By its variables, in a unit's drop-in, a Compose file, and by a Modelfile."""
    unit = one("[Service]\nEnvironment=OLLAMA_NUM_PARALLEL=4\n", "override.conf")
    compose = one("services: {o: {image: ollama/ollama, environment: {OLLAMA_NUM_PARALLEL: 4}}}")
    model = one("FROM llama3\nPARAMETER num_ctx 4096\n", "Modelfile")

    assert (unit.engine, unit.env["OLLAMA_NUM_PARALLEL"].text) == ("ollama", "4")
    assert compose.env["OLLAMA_NUM_PARALLEL"].text == "4"
    assert model.attached["Modelfile"].text == "FROM llama3\nPARAMETER num_ctx 4096\n"


def test_helm_templates_take_the_values_beside() -> None:
    """`.Values.x` of values.yaml, defaults, and resources by toYaml."""
    chart = """
        kind: Deployment
        metadata: {name: {{ include "x" . }}}
        spec:
          template:
            spec:
              containers:
                - image: vllm/vllm-openai:{{ .Values.tag | default "v0.11.0" }}
                  args: ["--model={{ .Values.model }}", "--max-num-seqs={{ .Values.seqs }}"]
                  resources:
                    {{- toYaml .Values.resources | nindent 12 }}
        """
    values = "model: org/name\nresources: {limits: {nvidia.com/gpu: 2}}\n"
    found = one(chart, "deployment.yaml", values_dot_yaml=values)

    assert said(found) == "--model=org/name --max-num-seqs={{ .Values.seqs }}"
    assert found.words[1].unresolved == (".Values.seqs",)
    assert (found.image or Word("")).text == "vllm/vllm-openai:v0.11.0"
    assert found.gpu.devices == 2


def test_kustomization() -> None:
    """The resources beside it with patches of both kinds, and new images."""
    base = dedent(DEPLOYMENT)
    patch = (
        "kind: Deployment\nmetadata: {name: chat}\nspec: {replicas: 5, template: {spec: "
        "{containers: [{name: server, args: [--model, a/b]}]}}}\n"
    )
    found = one(
        """
        kind: Kustomization
        resources: [deployment.yaml]
        patches:
          - path: patch.yaml
          - target: {kind: Deployment}
            patch: |
              - {op: add, path: /spec/template/spec/containers/0/args/-, value: --enforce-eager}
        images: [{name: vllm/vllm-openai, newTag: v0.12.0}]
        """,
        "kustomization.yaml",
        deployment_dot_yaml=base,
        patch_dot_yaml=patch,
    )

    assert said(found) == "--model a/b --enforce-eager"
    assert (found.replicas, (found.image or Word("")).text) == (5, "vllm/vllm-openai:v0.12.0")


def test_markdown_and_terraform() -> None:
    """What stands between fences, and in here-documents."""
    text = "# Run\n\n```bash\n$ vllm serve a/b\n```\n\n```yaml\n{broken\n```\n"
    markdown = one(text, "README.md")
    terraform = one("user_data = <<-EOT\n  #!/bin/sh\n  vllm serve a/b\nEOT\n", "main.tf")

    assert (said(markdown), markdown.line) == ("vllm serve a/b", 4)
    assert (said(terraform), terraform.line) == ("vllm serve a/b", 3)


def test_commands_in_yaml_that_no_carrier_knows() -> None:
    """A CI step, a scenario."""
    found = one("""
        jobs:
          serve:
            steps:
              - run: |
                  pip install vllm
                  vllm serve a/b
        """)

    assert (said(found), lines(found)) == ("vllm serve a/b", [6, 6, 6])


def test_names_are_unique_in_a_file() -> None:
    """A name that two servers have is counted."""
    found = read("vllm serve a\nvllm serve b\nvllm serve c\n", "x.sh")

    assert [each.name for each in found] == ["server/1", "server/2", "server/3"]


def test_the_table_of_vendors_names_what_there_is() -> None:
    """A kind is read by one row; a quirk and an engine exist."""
    rows = vendors.table()
    kinds = [(kind, row.group) for row in rows for kind in row.kinds]

    assert len(kinds) == len(set(kinds))
    for row in rows:
        assert row.kinds or row.keys, row
        assert not row.quirk or callable(getattr(vendor_quirks, row.quirk)), row
        meant = row.engine if isinstance(row.engine, dict) else {"": row.engine}
        names = {name for key, name in meant.items() if key not in ("at", "has")}
        assert names <= vendors.STARTS.keys(), row


def test_a_resource_beside_is_found(tmp_path: Path) -> None:
    """A Model that stands in a file of its own; what refers to nothing at hand names the model."""
    service = (
        "apiVersion: inference.llmkube.dev/v1alpha1\nkind: InferenceService\n"
        "metadata: {name: chat}\nspec: {modelRef: llama, contextSize: 4096}\n"
    )
    model = (
        "apiVersion: inference.llmkube.dev/v1alpha1\nkind: Model\nmetadata: {name: llama}\n"
        "spec: {source: https://x/y.gguf, quantization: Q8_0}\n"
    )
    (tmp_path / "service.yaml").write_text(service, encoding="utf-8")
    (alone,) = read_paths([str(tmp_path / "service.yaml")]).servers
    (tmp_path / "model.yaml").write_text(model, encoding="utf-8")
    (tmp_path / "broken.yaml").write_text("kind: Model # llama\n\t- [", encoding="utf-8")
    (found,) = read_paths([str(tmp_path / "service.yaml")]).servers

    assert alone.model is not None and alone.model.value == "llama"
    assert [f.code for f in alone.findings] == ["assumed-model"]
    assert found.model is not None and found.model.value == "https://x/y.gguf"
    assert found.model.file == str(tmp_path / "model.yaml")
    assert found.findings == ()
    assert [s.value for s in found.settings if s.name == "quantization"] == ["Q8_0"]


def test_names_of_a_release() -> None:
    """One server has the release's name, several their own behind it."""
    text = """
        kind: HelmRelease
        metadata: {name: r}
        spec:
          values:
            servingEngineSpec:
              modelSpec:
                - {name: a, modelURL: x/a}
                - {name: b, modelURL: x/b}
        """
    assert [each.name for each in read(text)] == ["r/a", "r/b"]
    assert [each.carrier for each in read(text)] == ["HelmRelease"] * 2
    assert one(text.replace("- {name: b, modelURL: x/b}", "")).name == "r"


def test_values_over_values() -> None:
    """ConfigMaps first, then texts, mappings and parameters; lists whole, but by parameters."""
    text = """
        kind: Application
        metadata: {name: r}
        spec:
          source:
            helm:
              values: |
                servingEngineSpec:
                  modelSpec:
                    - {name: a, modelURL: x/a, vllmConfig: {maxModelLen: 1, maxNumSeqs: 2}}
                    - {name: b, modelURL: x/b}
              valuesObject:
                servingEngineSpec: {tolerations: []}
              parameters:
                - {name: "servingEngineSpec.modelSpec[1].vllmConfig.maxModelLen", value: "7"}
                - {name: "servingEngineSpec.modelSpec[0].vllmConfig.maxNumSeqs", value: "9"}
                - {name: "[", value: x}
                - {name: "a[99999]", value: x}
        """
    assert [said(each) for each in read(text)] == [
        "vllm serve x/a --max-model-len 1 --max-num-seqs 9",
        "vllm serve x/b --max-model-len 7",
    ]
    over = text.replace("{tolerations: []}", "{modelSpec: [{name: c, modelURL: x/c}]}")
    assert said(read(over)[0]) == "vllm serve x/c --max-num-seqs 9"


def test_a_kind_that_nobody_knows() -> None:
    """An image of an engine with its flags is a server, in whatever resource; a definition none."""
    text = """
        apiVersion: example.dev/v1
        kind: {kind}
        metadata: {name: m}
        spec:
          predictor:
            replicas: 2
            image: vllm/vllm-openai:v0.33.0
            args: [--model=a/b]
            resources: {limits: {nvidia.com/gpu: 2}}
        """
    found = one(text.replace("{kind}", "Serving"))
    assert (found.name, found.carrier, said(found)) == ("m", "Serving", "--model=a/b")
    assert (found.replicas, found.gpu.devices) == (2, 2)
    with pytest.raises(InputError):
        read(text.replace("{kind}", "CustomResourceDefinition"))


def test_env_files_of_compose() -> None:
    """`.env` and env_file put in their own variables; single quotes keep them; defaults; order."""
    found = read(
        """
        services:
          a:
            image: vllm/vllm-openai:${TAG}
            env_file: [one.env, two.env]
            environment: {SEQS: "8"}
            entrypoint: [sh, -c]
            command: ["vllm serve $$MODEL --max-model-len $$LEN --max-num-seqs $$SEQS --dtype $$D"]
        """,
        _dot_env="ORG=meta-llama\nMODEL=${ORG}/x # said\nexport TAG=v0.33.0\n",
        one_dot_env="MODEL=${MODEL}\nLEN=1024\nSEQS=4\nD='$ORG'\n",
        two_dot_env='LEN="${NONE:-2048}"\n',
    )
    (server,) = map(read_command, found)
    settings = {s.name: s.value for s in server.settings}

    assert server.engine_version == "0.33.0"
    assert server.model is not None and server.model.value == "meta-llama/x"
    assert (settings["max_model_len"], settings["max_num_seqs"]) == (2048, 8)
    assert settings["dtype"] is None  # a text of single quotes is no variable's


def test_env_files_that_hold_themselves() -> None:
    """A variable that doubles itself ends; one that has no value stays as written."""
    doubled = "A=xx\n" + "A=${A}${A}\n" * 60
    text = "services: {a: {image: vllm/vllm-openai, command: --model $A$B --dtype $C}}\n"
    (found,) = read(text, _dot_env=f"{doubled}B=${{B}}\nC=${{D}}\n")
    assert found.words[1].unresolved == ()
    assert len(found.words[1].text) <= 100_000


PYTHON = {
    "list": ("subprocess.run(['vllm', 'serve', 'a/b', '--dtype', 'half'])", True),
    "shell": ("os.system('vllm serve a/b --dtype half')", True),
    "joined": ("c = ['vllm', 'serve', 'a/b']\nc += ['--dtype', 'half']\nrun(' '.join(c))", True),
    "sum": ("run(['vllm', 'serve', 'a/b'] + ['--dtype', 'half'])", True),
    "starred": ("x = ['--dtype', 'half']\nrun(['vllm', 'serve', 'a/b', *x])", True),
    "constant": ("M = 'a/b'\nrun(['vllm', 'serve', M, '--dtype', 'half'])", True),
    "f-string": ("M, D = 'a', 1\nD = 'half'\nrun(['vllm', 'serve', 'a/b', f'--dtype={D}'])", True),
    "a default": ("def f(m='a/b'):\n  run(['vllm', 'serve', m, '--dtype', 'half'])", True),
    "a variable": ("m = os.getenv('M', 'a/b')\nrun(['vllm', 'serve', m, '--dtype', 'half'])", True),
    "split": ("Popen(shlex.split('vllm serve a/b --dtype half'))", True),
    "in a class": ("class A:\n  def f(self):\n    run(['vllm', 'serve', 'a/b', '--dtype=half'])",
                   True),
    "returned": ("def f():\n  return ['vllm', 'serve', 'a/b', '--dtype', 'half']", True),
    "keyword": ("App(command=['vllm', 'serve', 'a/b', '--dtype', 'half'])", True),
    "in a shell": ("run(['bash', '-c', 'vllm serve a/b --dtype half'])", True),
    "docker": ("run(['docker', 'run', 'vllm/vllm-openai', '--model', 'a/b', '--dtype', 'half'])",
               True),
    "branch": ("c = ['vllm', 'serve', 'a/b', '--dtype', 'half']\nif x():\n  c += ['--tp', '2']",
               True),
    "known branch": ("F = True\nc = ['vllm', 'serve', 'a/b']\nif F:\n  c += ['--dtype', 'half']",
                     True),
    "not served": ("run(['vllm', 'bench', 'serve', '--model', 'a/b'])", False),
    "another": ("x = ['vllm', 'sglang']\nprint('vllm serve a/b')", False),
    "a doc string": ('"""vllm serve a/b --dtype half"""', False),
}  # fmt: skip


@pytest.mark.parametrize("kind", PYTHON)
def test_python(kind: str) -> None:
    """Commands as launchers build them, once each; nothing is run."""
    text, served = PYTHON[kind]
    if not served:
        with pytest.raises(InputError, match="starts no server"):
            read(text, "x.py")
        return
    (server,) = map(read_command, read(text, "x.py"))
    assert server.model is not None and server.model.value == "a/b"
    assert [(s.name, s.value) for s in server.settings] == [("dtype", "float16")]


def test_python_of_modal() -> None:
    """The GPUs of the decorator, what the image installs, its own variables."""
    text = """
        base = modal.Image.from_registry("vllm/vllm-openai:v0.11.0")
        image = base.env({"CUDA_VISIBLE_DEVICES": "1"})
        @app.function(gpu=%s)
        def serve():
            subprocess.Popen(["vllm", "serve", "a/b"])
        """
    for gpu, devices, product in (
        ('"H100:2"', 2, "H100"),
        ('"H100!"', 1, "H100"),
        ('["H100", "A100-80GB"]', 1, "H100"),
        ("modal.gpu.A100(count=4)", 4, "A100"),
        ('f"L4:{2}"', 2, "L4"),
    ):
        found = one(text % gpu, "x.py")
        assert (found.gpu.devices, found.gpu.product and found.gpu.product.text) == (
            devices,
            product,
        )
        assert (found.name, found.gpu.visible) == ("serve", ("1",))
        assert read_command(found).engine_version == "0.11.0"
    assert one(text % "N", "x.py").gpu.product is None


def test_python_that_is_none() -> None:
    """What cannot be parsed is passed over with its line; what names no engine is not parsed."""
    with pytest.raises(InputError, match="cannot be parsed") as caught:
        read("x = (\nrun(['vllm', 'serve'", "x.py")
    assert caught.value.where.startswith("x.py:")
    with pytest.raises(InputError, match="starts no server"):
        read("print 'no engine'", "x.py")


def test_each_card_that_may_be_given_is_checked(tmp_path: Path) -> None:
    """A target a card, findings once; one that the caller names is alone."""
    path = tmp_path / "x.yaml"
    path.write_text(
        "resources: {accelerators: [L4:1, H100:1, NVIDIA-H100-80GB-HBM3:1]}\n"
        "run: vllm serve meta-llama/Llama-3.1-8B --max-modl-len 1\n",
        encoding="utf-8",
    )
    found = gather([str(path)], (), Options())
    assert [t.name for t in found] == ["task/l4", "task/h100-80gb"]
    assert [t.gpu and t.gpu.name for t in found] == ["l4", "h100-80gb"]
    assert [len(t.findings) for t in found] == [1, 0]
    assert len(gather([str(path)], (), Options(gpu="h200"))) == 1


def test_accelerators_by_their_number() -> None:
    """A command that reads the number of its devices is another for each."""
    text = """
        resources:
          any_of:
            - {accelerators: L4:4}
            - {accelerators: {H100: 1}}
            - {accelerators: [H200, "A100-80GB:1"]}
        run: vllm serve a/b --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE
        """
    found = read(text)
    assert [each.name for each in found] == ["task/L4:4", "task/H100:1"]
    assert [said(each).rpartition(" ")[2] for each in found] == ["4", "1"]
    assert [word.text for word in found[1].gpu.choices] == ["H200", "A100-80GB"]


def test_scripts_that_scripts_write() -> None:
    """By their name or their first line, once, whatever else takes their text."""
    for target in ("cat > run.sh <<'X'", "sudo tee /opt/run > /dev/null <<X", "tee run <<'X'"):
        text = f"{target}\n#!/bin/sh\nexec vllm serve a/b --dtype half\nX\nchmod +x run\n"
        found = one(text, "install.sh")
        assert said(found) == "vllm serve a/b --dtype half"
        assert found.words[0].line == 3


def test_supervisord() -> None:
    """Each program with its own environment; settings in sections of another kind start nothing."""
    text = """
        [supervisord]
        nodaemon=true
        [program:one]
        command=vllm serve a/b --dtype half
        environment=CUDA_VISIBLE_DEVICES="1",X='2'
        [program:two]
        command=/bin/sh -c "vllm serve c/d"
        [program:web]
        command=nginx -g x
        """
    found = read(text, "x.conf")
    assert [(each.name, said(each), each.gpu.visible) for each in found] == [
        ("one", "vllm serve a/b --dtype half", ("1",)),
        ("two", "vllm serve c/d", None),
    ]
    with pytest.raises(InputError, match="starts no server"):
        read("[loggers]\nkeys=root,vllm\n[logger_vllm]\nlevel=INFO\n", "x.conf")


BESIDE = {
    # what lies beside deployments, names an engine, and is none
    "nginx.conf": "upstream vllm { server vllm-1:8000; }\nserver { location / { return 204; } }\n",
    "prometheus.yml": "scrape_configs:\n  - job_name: vllm\n    static_configs:\n"
    '      - {targets: ["vllm:8000"]}\n',
    "logging.conf": "[loggers]\nkeys=root,vllm\n",
    "dash.json": '{"title": "vLLM", "panels": [{"expr": "vllm:x{a=\\"$m\\"}", "f": "{{i}}"}]}',
    "_helpers.tpl": '{{- define "vllm.name" -}}\n{{- default .Chart.Name .Values.x | trunc 63 }}\n'
    "{{- end }}\n",
    "main.tf": 'resource "helm_release" "vllm" {\n  name = "x"\n}\n',
    "rules.yaml": "groups:\n  - name: vllm\n    rules: [{alert: A, expr: 'vllm:x > 1'}]\n",
    "test.py": "import vllm\n\n\ndef test() -> None:\n    vllm.serve()\n",
    "caddy.conf": ":80 {\n  reverse_proxy vllm:8000 {\n    header_up Host {host}\n  }\n}\n",
    "ci.yaml": "on: push\njobs:\n  a:\n    steps:\n      - run: pip install vllm\n",
}


def test_what_lies_beside_deployments_is_no_fault(tmp_path: Path) -> None:
    """A folder with them is checked as one without: nothing refused, nothing skipped."""
    for name, text in BESIDE.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "serve.sh").write_text("vllm serve meta-llama/Llama-3.1-8B\n", encoding="utf-8")
    found = gather([str(tmp_path)], (), Options(gpu="h200"))

    assert [target.name for target in found] == ["server"]
