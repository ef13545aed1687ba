#!/usr/bin/python3
"""deploy/ renders, fits the schemas, and agrees with itself and the sources. Each kind of fault, planted in a copy, is found."""
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

# The tree itself, not the runfiles: WORKSPACE is a link into it.
ROOT = pathlib.Path(os.path.realpath("WORKSPACE")).parent
sys.path.insert(0, str(ROOT / "tests/deploy"))
sys.dont_write_bytecode = True
import environment  # pylint: disable=wrong-import-position

environment.enter()
from checker import BASE, Tree  # pylint: disable=wrong-import-position
from rendered import at, pods_of  # pylint: disable=wrong-import-position

COPIED = ["deploy", "docs/deploy.md", "docs/metrics_list.md", "docs/recovery.md", "common/program/exit_codes.h", "ps_server/program.cc",
          "worker/main.cc"]

KUSTOMIZE = "deploy/kustomize/"
SERVERS, WORKERS = KUSTOMIZE + "base/servers.yaml", KUSTOMIZE + "base/workers.yaml"
EVALUATOR, ACCESS, JOB = (KUSTOMIZE + path for path in ("base/evaluator.yaml", "common/access.yaml", "common/job.json"))
DEV, PROD = KUSTOMIZE + "overlays/dev", KUSTOMIZE + "overlays/prod"
SIZE, GPU, ELASTIC, MONITORING = (KUSTOMIZE + "components/" + name for name in ("size", "gpu", "elastic", "monitoring"))
STORAGE = KUSTOMIZE + "components/object-storage"
MTLS, CERT_MANAGER = KUSTOMIZE + "components/mtls", KUSTOMIZE + "components/cert-manager"
EXPORT = KUSTOMIZE + "checkpoints/export.yaml"
KUBEFLOW, JOBSET = "deploy/kubeflow", "deploy/jobset"
ALERTS, SCRAPE, MONITORING_FILE = (MONITORING + "/" + name for name in ("alerts.yaml", "scrape.yaml", "kustomization.yaml"))
DOCKERFILE, PAGE = "deploy/docker/Dockerfile", "docs/deploy.md"
MTLS_FILE, CERTIFICATES_FILE = MTLS + "/kustomization.yaml", CERT_MANAGER + "/kustomization.yaml"
CERTIFICATES = CERT_MANAGER + "/certificates.yaml"
TFJOB_FILE, JOBSET_FILE = KUBEFLOW + "/tfjob.yaml", JOBSET + "/jobset.yaml"

# Rendering, file, what is there, what is planted instead of it, part of a fault that must be found.
PLANTED = [
    # Typos.
    (BASE, SERVERS, "podManagementPolicy:", "podManagmentPolicy:", "'podManagmentPolicy' was unexpected"),
    (BASE, WORKERS, "completionMode: Indexed", "completionMode: 1", "spec.completionMode"),
    (BASE, KUSTOMIZE + "base/kustomization.yaml", "servers.yaml", "server.yaml", "kubectl kustomize"),
    (BASE, ACCESS, "kind: NetworkPolicy", "kind: NetworkPolicies", "find schema"),
    (MONITORING, SCRAPE, "interval:", "intervall:", "'intervall' was unexpected"),
    (MONITORING, ALERTS, "for: 2m", "for: 2 minutes", "does not match"),
    (KUBEFLOW, TFJOB_FILE, "cleanPodPolicy: Running", "cleanPodPolicy: Runing", "'Runing' is not one of"),
    (KUBEFLOW, TFJOB_FILE, "enableServiceLinks:", "enableServiceLink:", "'enableServiceLink' was unexpected"),
    (JOBSET, JOBSET_FILE, "dependsOn:", "dependOn:", "'dependOn' was unexpected"),
    (JOBSET, JOBSET_FILE, "completionMode:", "completionsMode:", "'completionsMode' was unexpected"),
    # Counts.
    (BASE, SERVERS, "replicas: 2", "replicas: 3", "there are 3 pods, but --cluster has ps=weir-ps:2"),
    (BASE, WORKERS, "completions: 4", "completions: 5", "there are 5 pods, but --cluster has worker=weir-worker:4"),
    (BASE, WORKERS, "parallelism: 4", "parallelism: 2", "parallelism must equal completions"),
    (BASE, EVALUATOR, '"2"', '"3"', "different cluster specs"),
    (SIZE, SIZE + "/kustomization.yaml", "          - spec.parallelism\n", "", "parallelism must equal completions"),
    (SIZE, SIZE + "/kustomization.yaml", "          - spec.replicas\n", "", "2 pods, but --cluster has ps=weir-ps:3"),
    (ELASTIC, ELASTIC + "/kustomization.yaml", "max_workers", "servers", "5 pods, but --cluster has worker=weir-worker:3"),
    (ELASTIC, ELASTIC + "/kustomization.yaml", "    patch: *min_workers", "    patch: '[]'", "different configs"),
    (JOBSET, JOBSET_FILE, "completions: 2", "completions: 1", "there are 1 pods, but --cluster has ps=weir-ps-0-*.weir:2"),
    # Names.
    (BASE, WORKERS, "subdomain: weir-worker", "subdomain: weir", "the pod is weir-worker-0.weir, but worker:0 in --cluster is"),
    (BASE, SERVERS, "serviceName: weir-ps", "serviceName: weir", "there is no Service weir"),
    (BASE, SERVERS, "publishNotReadyAddresses: true", "publishNotReadyAddresses: false", "must be headless"),
    (BASE, SERVERS, "clusterIP: None", "clusterIP: 10.0.0.7", "must be headless"),
    (BASE, SERVERS, "$(WEIR_SERVERS)", "$(WEIR_PS)", "no variable of the container is $(WEIR_PS)"),
    (BASE, WORKERS, "- name: POD_NAME", "- name: POD", "needs --task=pod and POD_NAME"),
    (JOBSET, JOBSET_FILE, "subdomain: weir", "subdomain: weirs", "the pod is weir-ps-0-0.weirs"),
    (JOBSET, JOBSET_FILE, "publishNotReadyAddresses: true", "publishNotReadyAddresses: false", "there is no Service weir"),
    (KUBEFLOW, TFJOB_FILE, "name: tensorflow", "name: weir", "needs a container tensorflow"),
    (BASE, SERVERS, "podManagementPolicy: Parallel", "podManagementPolicy: OrderedReady", "must be Parallel"),
    (BASE, SERVERS, "type: OnDelete", "type: RollingUpdate", "must be OnDelete"),
    # Selectors.
    (BASE, ACCESS, "app.kubernetes.io/component: ps", "app.kubernetes.io/component: server", "no pod matches"),
    (BASE, WORKERS, "component: worker\n---", "component: workers\n---", "does not match"),
    (BASE, WORKERS, "              app.kubernetes.io/component: worker\n      containers",
     "              app.kubernetes.io/component: ps\n      containers", "topologySpreadConstraints do not match"),
    (MONITORING, SCRAPE, "component: ps", "component: server", "PodMonitor weir-ps: no pod matches"),
    # Ports and probes.
    (BASE, SERVERS, "containerPort: 2222", "containerPort: 2223", "no container port is 2222"),
    (BASE, SERVERS, "port: 2222, targetPort: grpc", "port: 2223, targetPort: grpc", "its port 2223 leads to grpc"),
    (BASE, ACCESS, "port: 2222", "port: 2223", "allows port 2223"),
    (BASE, SERVERS, "--http_port=8080", "--http_port=8082", "port http is 8080, but --http_port=8082"),
    (BASE, SERVERS, "--health_port=8081", "--health_port=8082", "asks port 8081, but --health_port=8082"),
    (JOBSET, JOBSET_FILE, "                    - --health_port=8081\n", "", "port health is 8081, but --health_port=None"),
    (BASE, SERVERS, "path: /readyz, port: health", "path: /readyz, port: healht", "asks port healht"),
    (KUBEFLOW, TFJOB_FILE, "path: /healthz, port: health", "path: /healthz, port: http", "asks port 8080, but --health_port=8081"),
    (BASE, SERVERS, "path: /healthz", "path: /readyz", "livenessProbe must ask /healthz"),
    (BASE, SERVERS, "livenessProbe:", "lifecycle:", "needs a livenessProbe"),
    (MONITORING, SCRAPE, "port: http", "port: grpc", "scrapes port grpc"),
    (MONITORING, SCRAPE, "key: token", "key: tokens", "sends the token ('weir-http-token', 'tokens'), but WEIR_HTTP_TOKEN_FILE"),
    (MONITORING, SCRAPE, "      authorization:\n        credentials: {name: weir-http-token, key: token}\n", "", "sends the token (None, None)"),
    (MONITORING, MONITORING_FILE, "value: /etc/weir-http-token/token", "value: /etc/token", "WEIR_HTTP_TOKEN_FILE is in no Secret"),
    (MONITORING, MONITORING_FILE, "0440", "0444", "the defaultMode of WEIR_HTTP_TOKEN_FILE must be 0440"),
    (MONITORING, PAGE, "| Secret `weir-http-token` |", "| `weir-http-token` |", "needs the Secret weir-http-token"),
    (KUBEFLOW, TFJOB_FILE, "tfjob-port, containerPort: 2222", "tfjob-port, containerPort: 2223", "tfjob-port of 2222"),
    # Exit codes: in the manifests, and in the sources.
    (BASE, WORKERS, "74, 78]", "75, 78]", "exit codes that fail the job are [[64, 70, 75, 78]]"),
    (BASE, EVALUATOR, "[138, 143]", "[138]", "exit codes that do not count are [[138]]"),
    (BASE, "common/program/exit_codes.h", "kExitStorage = 74", "kExitStorage = 73", "has [64, 70, 73, 78]"),
    (JOBSET, JOBSET_FILE, "64, 70", "70", "exit codes that fail the job are [[70, 74, 78]]"),
    (BASE, WORKERS, "type: DisruptionTarget", "type: Ready", "disruptions must not count"),
    (BASE, WORKERS, "containerName: weir,", "containerName: worker,", "names the container worker"),
    (BASE, WORKERS, "operator: In, values: [64", "operator: NotIn, values: [64", "must list codes with In"),
    (BASE, WORKERS, "backoffLimit: 1000", "backoffLimit: 6", "may end a healthy job"),
    (KUBEFLOW, TFJOB_FILE, "restartPolicy: ExitCode", "restartPolicy: OnFailure", "restartPolicy must be ExitCode"),
    (KUBEFLOW, TFJOB_FILE, "cleanPodPolicy: Running", "cleanPodPolicy: Running\n    backoffLimit: 3", "would end a job"),
    (KUBEFLOW, TFJOB_FILE, "cleanPodPolicy: Running", "cleanPodPolicy: None", "servers end with the job"),
    (JOBSET, JOBSET_FILE, "targetReplicatedJobs: [worker]", "targetReplicatedJobs: [ps]", "the workers' success"),
    (JOBSET, JOBSET_FILE, "status: Ready", "status: Complete", "must depend on ps being Ready"),
    (JOBSET, JOBSET_FILE, "[PodFailurePolicy]", "[DeadlineExceeded]", "must fail the JobSet"),
    # Times.
    (BASE, SERVERS, "terminationGracePeriodSeconds: 150", "terminationGracePeriodSeconds: 120", "it must be at least 130"),
    (JOBSET, JOB, '"server_wait_seconds": 120', '"server_wait_seconds": 300', "it must be at least 310"),
    # What pods need.
    (BASE, SERVERS, "secretName: weir-token", "secretName: weir-tokens", "needs the Secret weir-tokens"),
    (KUBEFLOW, TFJOB_FILE, "secretName: weir-token", "secretName: token", "needs the Secret token"),
    (BASE, PAGE, "| Secret `weir-token` |", "| `weir-token` |", "needs the Secret weir-token"),
    (BASE, WORKERS, "configMap: {name: weir-job}", "configMap: {name: weir-jobs}", "needs the ConfigMap weir-jobs"),
    (BASE, WORKERS, "--config=/etc/weir/job.json", "--config=/etc/weir/jobs.json", "is in no ConfigMap"),
    (BASE, SERVERS, "claimName: weir-checkpoints", "claimName: weir", "needs the PersistentVolumeClaim weir,"),
    (BASE, ACCESS, "kind: ServiceAccount\nmetadata:\n  name: weir", "kind: ServiceAccount\nmetadata:\n  name: other",
     "needs the ServiceAccount weir"),
    (BASE, SERVERS, "name: tmp, mountPath", "name: temp, mountPath", "a mount without a volume"),
    (BASE, SERVERS, "defaultMode: 0440", "defaultMode: 0444", "the defaultMode of WEIR_TOKEN_FILE must be 0440"),
    (BASE, WORKERS, "value: /etc/weir-token/token", "value: /etc/token", "WEIR_TOKEN_FILE is in no Secret"),
    (BASE, JOB, "/var/lib/weir/checkpoints", "/var/lib/checkpoints", "names /var/lib/checkpoints"),
    (PROD, PROD + "/job.json", '"/data/t10k-images', '"/date/t10k-images', "names /date/t10k-images"),
    # Images, flags, rights.
    (BASE, SERVERS, "image: weir:0.1.0", "image: weir:latest", "the image 'weir:latest' needs a version"),
    (BASE, WORKERS, "image: weir:0.1.0", "image: weir", "the image 'weir' needs a version"),
    (PROD, PROD + "/kustomization.yaml", "newTag: 0.1.0", "newTag: latest", "weir:latest' needs a version"),
    (GPU, GPU + "/kustomization.yaml", "weir-gpu:0.1.0", "weir-gpu:latest", "weir-gpu:latest' needs a version"),
    (KUBEFLOW, TFJOB_FILE, "image: weir:0.1.0", "image: weir:latest", "the image 'weir:latest' needs a version"),
    (BASE, WORKERS, "--log_format=json", "--http_port=8080", "--http_port=8080 is no flag of worker"),
    (KUBEFLOW, TFJOB_FILE, "- --bind=0.0.0.0", "- --bind=0.0.0.0\n                - --task=ps:0", "would override the TF_CONFIG"),
    (BASE, SERVERS, "runAsUser: 65532", "runAsUser: 0", "needs runAsNonRoot"),
    (BASE, WORKERS, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "needs readOnlyRootFilesystem"),
    (JOBSET, JOBSET_FILE, "drop: [ALL]", "add: [SYS_PTRACE]", "needs capabilities, all dropped"),
    (EXPORT, EXPORT, "seccompProfile: {type: RuntimeDefault}", "seccompProfile: {type: Unconfined}", "needs seccompProfile"),
    (BASE, SERVERS, "requests: {cpu: 500m, memory: 256Mi}", "requests: {cpu: 500m}", "needs a request for memory"),
    (GPU, GPU + "/kustomization.yaml", "nvidia.com~1gpu", "amd.com~1gpu", "limit of nvidia.com/gpu is None"),
    # Service meshes.
    (BASE, SERVERS, 'inject: "false"\n        kuma', 'inject: "true"\n        kuma', 'StatefulSet weir-ps: needs the label sidecar.istio.io/inject: "false"'),
    (BASE, WORKERS, "linkerd.io/inject: disabled", "linkerd.io/inject: enabled", 'Job weir-worker: needs the annotation linkerd.io/inject'),
    (JOBSET, JOBSET_FILE, "annotations: *no_mesh", "annotations: {}", 'JobSet weir, worker: needs the annotation sidecar.istio.io/inject'),
    (KUBEFLOW, TFJOB_FILE, "kuma.io/sidecar-injection", "kuma.io/injection", "TFJob weir, Chief: needs the label kuma.io/sidecar-injection"),
    # Object storage.
    (STORAGE, STORAGE + "/kustomization.yaml", "name: AWS_ACCESS_KEY_ID\n", "name: AWS_ACCESS_KEY\n",
     "AWS_ACCESS_KEY_ID must come from a Secret"),
    (STORAGE, STORAGE + "/kustomization.yaml", "name: AWS_ENDPOINT_URL_S3\n", "name: AWS_ENDPOINT\n", "has no variable AWS_ENDPOINT"),
    (STORAGE, STORAGE + "/kustomization.yaml", "key: AWS_SECRET_ACCESS_KEY}", "key: AWS_SECRET_ACCESS_KEY, optional: true}",
     "AWS_SECRET_ACCESS_KEY must come from a Secret"),
    (STORAGE, STORAGE + "/kustomization.yaml", "key: AWS_REGION", "key: AWS_REGIO", "AWS_REGION must come from the key of its name"),
    (STORAGE, STORAGE + "/kustomization.yaml", "name: weir-object-storage, key: AWS_ACCESS", "name: weir-storage, key: AWS_ACCESS",
     "needs the Secret weir-storage"),
    (STORAGE, STORAGE + "/kustomization.yaml",
     """      - {op: remove, path: /spec/template/spec/volumes/3}
      - {op: test, path: /spec/template/spec/containers/0/volumeMounts/3/name, value: checkpoints}
      - {op: remove, path: /spec/template/spec/containers/0/volumeMounts/3}
""", "", "mounts the claim weir-checkpoints, but"),
    (STORAGE, SERVERS, "- name: tmp\n          emptyDir: {}\n        - name: checkpoints", "- name: checkpoints", "kubectl kustomize"),
    (STORAGE, STORAGE + "/network.yaml", "port: 443", "port: 80", "no NetworkPolicy lets it reach object storage"),
    (STORAGE, STORAGE + "/network.yaml", "component: ps", "component: worker", "no NetworkPolicy lets it reach object storage"),
    # TLS.
    (BASE, SERVERS, "            - --insecure_plaintext\n", "", "needs the files of TLS or --insecure_plaintext"),
    (MTLS, SERVERS, "- --bind=0.0.0.0\n", "- --bind=0.0.0.0\n            - --log_format=json\n", "kubectl kustomize"),
    (MTLS, MTLS_FILE, "      - {op: remove, path: /spec/template/spec/containers/0/args/4}\n", "", "and not both"),
    (MTLS, MTLS_FILE, "name: weir-ps|weir-worker}", "name: weir-ps}", "Job weir-worker: the image '' needs a version"),
    (MTLS, MTLS_FILE, "{name: WEIR_TLS_KEY, value: /run/weir-tls/reader.key}", "{name: WEIR_TLS, value: key}", "TLS needs all of"),
    (MTLS, MTLS_FILE, "/run/weir-tls/reader.key}", "/run/weir/reader.key}", "are in no volume, or in two"),
    (MTLS, MTLS_FILE, "value: /etc/weir-ca/ca.pem", "value: /etc/ca.pem", "WEIR_TLS_CA is in no ConfigMap"),
    (MTLS, MTLS_FILE, "secretName: weir-tls-worker", "secretName: weir-tls-workers", "needs the Secret weir-tls-workers"),
    (MTLS, PAGE, "| Secret `weir-tls-reader` |", "| `weir-tls-reader` |", "needs the Secret weir-tls-reader"),
    (MTLS, PAGE, "| ConfigMap `weir-ca` |", "| `weir-ca` |", "needs the ConfigMap weir-ca"),
    (MTLS, MTLS_FILE, "secretName: weir-tls-ps, defaultMode: 0440", "secretName: weir-tls-ps, defaultMode: 0444",
     "StatefulSet weir-ps: defaultMode of the volume certificates must be 0440"),
    (MTLS, MTLS_FILE, "{secretName: weir-tls-reader, defaultMode: 0440}", "{secretName: weir-tls-reader}",
     "Job weir-evaluator: defaultMode of the volume certificate must be 0440"),
    (MTLS, MTLS_FILE, "{name: certificate, mountPath: /run/weir-tls, readOnly: true}", "{name: certificates, mountPath: /run/weir-tls}",
     "pods would have one certificate, or see each other's keys"),
    (MTLS, MTLS_FILE, "value: {name: ca, mountPath", "value: {name: certificates, mountPath", "sees the keys of all tasks of its role"),
    (MTLS, MTLS_FILE, "{name: certificate, mountPath: /run/weir-tls}", "{name: certificate, mountPath: /run/weir}",
     "must be ready when /run/weir/current/tls.key is there"),
    (MTLS, MTLS_FILE, "{name: certificate, mountPath: /run/weir-tls}", "{name: certificate, mountPath: /run/weir-tls, readOnly: true}",
     "no container of its own puts a certificate"),
    (MTLS, MTLS_FILE, "test, -f, /run/weir-tls/current/tls.key", "test, -d, /run/weir-tls", "so that the task starts after that"),
    (MTLS, MTLS_FILE, "mountPath: /etc/weir-certificates,", "mountPath: /etc/certificates,", "/etc/weir-certificates is no Secret's"),
    (MTLS, MTLS_FILE, "- own_certificate.sh", "- own.sh=own_certificate.sh", "own_certificate.sh is in no ConfigMap"),
    (MTLS, MTLS_FILE, "tls.crt}", "tls.pem}", "WEIR_TLS_CERTIFICATE must be /run/weir-tls/current/tls.crt"),
    (MTLS, MTLS_FILE, "restartPolicy, value: Always", "terminationMessagePolicy, value: File", "needs restartPolicy Always"),
    (MTLS, MTLS_FILE, "medium: Memory, ", "", "needs the medium Memory"),
    (MTLS, MTLS_FILE, "{name: WEIR_ROLE, value: worker}", "{name: WEIR_ROLE, value: ps}", "needs POD_NAME, and WEIR_ROLE=worker"),
    (MTLS, MTLS_FILE, "initContainers/0/image, value: weir:0.1.0", "initContainers/0/image, value: weir", "the image 'weir' needs a version"),
    (MTLS, MTLS_FILE, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "needs readOnlyRootFilesystem"),
    (MTLS, MTLS_FILE, "  - target: {kind: StatefulSet|Job}\n", "  - target: {kind: Job}\n", "StatefulSet weir-ps: TLS needs all of"),
    (MTLS, MTLS_FILE, "  - target: {kind: StatefulSet|Job}\n", "  - target: {kind: StatefulSet}\n", "Job weir-evaluator: TLS needs all of"),
    (CERT_MANAGER, CERTIFICATES, "spiffe://weir/worker/2", "spiffe://weir/worker/1", "worker-2.pem must be the key tls.crt"),
    (CERT_MANAGER, CERTIFICATES, "spiffe://weir/reader", "spiffe://weir/evaluator/0", "needs one identity of docs/security.md"),
    (CERT_MANAGER, CERTIFICATES, "secretName: weir-tls-ps-1", "secretName: weir-tls-ps-2", "needs the Secret weir-tls-ps-1"),
    (CERT_MANAGER, CERTIFICATES, "uris:", "urls:", "'urls' was unexpected"),
    (CERT_MANAGER, CERTIFICATES_FILE, "path: worker-3.key", "path: worker-4.key", "worker-3.key must be the key tls.key"),
    (CERT_MANAGER, CERTIFICATES_FILE, "server auth, client auth", "server auth", "must be for both ends"),
    (CERT_MANAGER, CERTIFICATES_FILE, "server auth, client auth", "server, client auth", "'server' is not one of"),
    (CERT_MANAGER, CERTIFICATES_FILE, "kind: Issuer, name: weir-ca", "kind: Issuer, name: ca", "needs the Issuer ca"),
    (CERT_MANAGER, CERTIFICATES_FILE, "defaultMode: 0440", "defaultMode: 0444", "defaultMode of the volume certificates must be 0440"),
    (CERT_MANAGER, SERVERS, "replicas: 2", "replicas: 3", "ps-2.pem must be the key tls.crt"),
    # Alerts and panels.
    (MONITORING, ALERTS, "weir_pushes_lost_total", "weir_lost_total", "no metric weir_lost_total"),
    (MONITORING, ALERTS, "changes(weir_job_examples[15m])", "changes(weir_job_examples[15m]", "is no PromQL"),
    (MONITORING, ALERTS, "last_terminated_reason", "terminated_reason", "no metric kube_pod_container_status_terminated_reason"),
    (MONITORING, ALERTS, "unless on (namespace, pod) kube_pod_container_status_last_terminated_reason", "unless weir_version",
     "servers whose job is done are started again"),
    (MONITORING, ALERTS, " offset 15m", "", "a series that has just begun has no changes"),
    (MONITORING, ALERTS, "labels: {severity: info}", "labels: {level: info}", "needs the label severity"),
    (MONITORING, MONITORING + "/dashboard.json", "weir_parked_pulls", "weir_waiting_pulls", "no metric weir_waiting_pulls"),
    (MONITORING, "docs/metrics_list.md", "`weir_job_step`", "`weir_step`", "no metric weir_job_step"),
]

# In the image's file, and in the page.
PLANTED_BESIDE = [
    (DOCKERFILE, "debian:bookworm-slim", "debian:latest", "'debian:latest' needs a version"),
    (DOCKERFILE, "debian:bookworm-slim", "debian", "'debian' needs a version"),
    (DOCKERFILE, "USER 65532:65532", "USER weir", "needs USER 65532:65532"),
    (DOCKERFILE, "USER 65532:65532\n", "", "cpu needs USER 65532:65532"),
    (DOCKERFILE, "AS gpu", "AS cuda", "there is no stage gpu"),
    (DOCKERFILE, "AS python", "AS py", "there is no stage python"),
    (DOCKERFILE, "python:3.12-slim-bookworm", "python:latest", "'python:latest' needs a version"),
    (DOCKERFILE, 'ENTRYPOINT ["weir", "run"]', "ENTRYPOINT weir run", "which starts no shell"),
    (DOCKERFILE, "org.opencontainers.image.licenses", "licenses", "needs the label"),
    (PAGE, "deploy/kustomize/overlays/dev", "deploy/kustomize/overlays/tiny", "no deploy/kustomize/overlays/tiny"),
]


class Manifests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def copy(self, name):
        """A fresh copy of what the checker reads."""
        root = self.root / name
        for path in COPIED:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / path).is_dir() else shutil.copy)(ROOT / path, root / path)
        return Tree(root)

    def plant(self, tree, path, old, new):
        text = (tree.root / path).read_text(encoding="utf-8")
        self.assertIn(old, text, f"nothing to plant a fault in: {path}")
        (tree.root / path).write_text(text.replace(old, new), encoding="utf-8")

    def assert_found(self, faults, expected):
        self.assertTrue(any(expected in fault for fault in faults), f"not found: {expected}\nfaults: " + "\n".join(faults))

    def test_everything_holds(self):
        tree = self.copy("tree")
        for rendering in tree.renderings():
            with self.subTest(rendering):
                self.assertEqual(tree.faults(rendering), [])
        self.assertEqual(list(tree.faults_beside()), [])

    def test_every_folder_is_rendered(self):
        tree = self.copy("tree")
        rendered = {path for path in tree.renderings() if (ROOT / path).is_dir()} | {"deploy/kustomize/common"}  # of base
        self.assertEqual(rendered, {str(p.parent.relative_to(ROOT)) for p in (ROOT / "deploy").rglob("kustomization.yaml")})

    def test_a_size_is_one_edit(self):
        tree = self.copy("tree")
        self.plant(tree, DEV + "/size.yaml", 'servers: "1"', 'servers: "3"')
        self.plant(tree, DEV + "/size.yaml", 'workers: "2"', 'workers: "7"')
        self.assertEqual(tree.faults(DEV), [])
        counts = {pods.title: pods.count for pods in pods_of(tree.objects(DEV))}
        self.assertEqual(counts, {"StatefulSet weir-ps": 3, "Job weir-worker": 7, "Job weir-evaluator": 1})

    def test_an_overlay_keeps_what_components_give(self):
        # Kustomize applies an overlay's own patches after those of its components.
        for component in ["gpu", "monitoring", "mtls", "elastic", "object-storage"]:
            with self.subTest(component):
                tree = self.copy(component)
                listed = f"  - ../../components/{component}\n"
                if listed not in (tree.root / PROD / "kustomization.yaml").read_text(encoding="utf-8"):
                    self.plant(tree, PROD + "/kustomization.yaml", "  - ../../components/size\n",
                               "  - ../../components/size\n" + listed)
                if component == "elastic":
                    self.plant(tree, PROD + "/size.yaml", 'workers: "16"\n', 'workers: "16"\n  max_workers: "64"\n')
                if component == "object-storage":
                    self.plant(tree, PROD + "/job.json", "/var/lib/weir/checkpoints", "s3://weir/fashion")
                self.assertEqual(tree.faults(PROD), [])
                gpus = [at(pods.container, "resources", "limits", "nvidia.com/gpu") for pods in pods_of(tree.objects(PROD))
                        if pods.flag("device") == "cuda:0"]
                self.assertEqual(gpus, ["1"] if component == "gpu" else [])

    def test_elastic_needs_a_limit(self):
        tree = self.copy("tree")
        self.plant(tree, DEV + "/kustomization.yaml", "  - ../../components/size\n",
                   "  - ../../components/size\n  - ../../components/elastic\n")
        self.assert_found(tree.faults(DEV), "data.max_workers")

    def test_metrics_with_tls_need_a_token(self):
        tree = self.copy("tree")
        text = (tree.root / MONITORING_FILE).read_text(encoding="utf-8")
        self.plant(tree, MONITORING_FILE, text[text.index("patches:"):], "")
        self.plant(tree, SCRAPE, "      authorization:\n        credentials: {name: weir-http-token, key: token}\n", "")
        self.assertEqual(tree.faults(MONITORING), [])
        self.assert_found(tree.faults(f"{MONITORING}+mtls"), "shows no metrics without WEIR_HTTP_TOKEN_FILE")

    def test_the_job_s_config_cannot_change(self):
        tree = self.copy("tree")
        for rendering in [BASE, DEV, PROD, KUBEFLOW, JOBSET]:
            configs = [found for found in tree.objects(rendering) if at(found, "metadata", "name") == "weir-job"]
            self.assertEqual([found.get("immutable") for found in configs], [True], rendering)

    def test_planted_faults_are_found(self):
        for number, (rendering, path, old, new, expected) in enumerate(PLANTED):
            with self.subTest(path=path, old=old, new=new):
                tree = self.copy(f"planted{number}")
                self.plant(tree, path, old, new)
                self.assert_found(tree.faults(rendering), expected)

    def test_planted_faults_beside_are_found(self):
        for number, (path, old, new, expected) in enumerate(PLANTED_BESIDE):
            with self.subTest(path=path, old=old, new=new):
                tree = self.copy(f"beside{number}")
                self.plant(tree, path, old, new)
                self.assert_found(list(tree.faults_beside()), expected)


if __name__ == "__main__":
    unittest.main()
