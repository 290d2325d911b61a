{{/* Environment and mounts of the exporter, from the values; all host folders except that of its own socket are mounted read-only. */}}

{{/* The annotations of a pod. One of podAnnotations replaces the chart's own of the same name. */}}
{{- define "vram-exporter.podAnnotations" -}}
{{- $annotations := dict "kubectl.kubernetes.io/default-container" "vram-exporter" }}
{{- if .Values.prometheusAnnotations }}
{{- $annotations = merge $annotations (include "vram-exporter.scrapeAnnotations" (dict "root" . "port" 9836) | fromYaml) }}
{{- end }}
{{- range $name, $value := .Values.podAnnotations }}
{{- $_ := set $annotations $name $value }}
{{- end }}
{{- toYaml $annotations }}
{{- end }}

{{/* The labels of a pod. podLabels cannot replace those by which the DaemonSet and the monitors select the pods. */}}
{{- define "vram-exporter.podLabels" -}}
{{- range $name, $_ := include "vram-exporter.selectorLabels" . | fromYaml }}
{{- if hasKey ($.Values.podLabels | default dict) $name }}
{{- fail (printf "podLabels must not set %s, by which the DaemonSet selects its pods: set nameOverride, or the name of the release" $name) }}
{{- end }}
{{- end }}
{{- include "vram-exporter.labelsWith" (dict "root" . "added" (list .Values.podLabels)) }}
{{- end }}

{{/* Whether the pod runs as uid 0: the kubelet creates sockets and folders for root, and added capabilities reach no other user. */}}
{{- define "vram-exporter.root" -}}
{{- or .Values.kubernetes.podResources.enabled .Values.allocator.enabled (ne .Values.memory.probes "none") }}
{{- end }}

{{- define "vram-exporter.env" -}}
{{- if hasKey (.Values.config | default dict) "memory.probes" }}
{{- fail "config must not set memory.probes, which also needs capabilities: set the value memory.probes" }}
{{- end }}
{{- if and (eq .Values.web.scheme "https") (not .Values.web.configSecret) }}
{{- fail "web.scheme=https needs web.configSecret, a secret with a web-config file that names a certificate" }}
{{- end }}
{{- if .Values.kubernetes.apiAccess }}
- name: VRAM_EXPORTER_KUBERNETES_NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: VRAM_EXPORTER_KUBERNETES_API_SERVER
  value: in-cluster
{{- with .Values.kubernetes.podLabels }}
- name: VRAM_EXPORTER_KUBERNETES_POD_LABELS
  value: {{ join "," . | quote }}
{{- end }}
{{- else if .Values.kubernetes.podLabels }}
{{- fail "kubernetes.podLabels needs kubernetes.apiAccess, which reports the labels" }}
{{- end }}
{{- if .Values.kubernetes.podResources.enabled }}
- name: VRAM_EXPORTER_KUBERNETES_POD_RESOURCES
  value: /var/lib/kubelet/pod-resources/kubelet.sock
{{- end }}
{{- if .Values.allocator.enabled }}
- name: VRAM_EXPORTER_ALLOCATOR_SOCKET
  value: /run/vram-exporter/allocator.sock
{{- end }}
{{- if ne .Values.memory.probes "none" }}
- name: VRAM_EXPORTER_MEMORY_PROBES
  value: {{ .Values.memory.probes }}
{{- end }}
{{- if .Values.driver.hostPath }}
{{- if .Values.runtimeClassName }}
{{- fail "driver.hostPath and runtimeClassName both bring a driver: set runtimeClassName to \"\"" }}
{{- end }}
- name: VRAM_EXPORTER_NVML_LIBRARY
  value: /host/driver/libnvidia-ml.so.1
{{- end }}
{{- if .Values.hostUsers }}
- name: VRAM_EXPORTER_PATH_PASSWD
  value: /host/passwd
{{- end }}
{{- if .Values.web.configSecret }}
- name: VRAM_EXPORTER_WEB_CONFIG_FILE
  value: /etc/vram-exporter/web/web-config.yml
# The kubelet has neither a client certificate nor a password.
- name: VRAM_EXPORTER_WEB_HEALTH_ADDRESS
  value: ":9837"
{{- end }}
{{- if .Values.dcgm.enabled }}
- name: VRAM_EXPORTER_DCGM_LISTEN_ADDRESS
  value: ":9400"
- name: VRAM_EXPORTER_DCGM_NAMES
  value: {{ .Values.dcgm.names }}
- name: VRAM_EXPORTER_DCGM_VIRTUAL_GPUS
  value: {{ .Values.dcgm.virtualGPUs | quote }}
{{- if .Values.dcgm.collectors.configMap }}
- name: VRAM_EXPORTER_DCGM_COLLECTORS_FILE
  value: /etc/vram-exporter/dcgm/{{ .Values.dcgm.collectors.key }}
{{- end }}
{{- end }}
{{- if .Values.otlp.endpoint }}
{{- $interval := index (.Values.config | default dict) "otlp.interval" | default "30s" }}
{{- include "vram-exporter.checkInterval" (dict "root" . "key" "config.otlp.interval" "interval" $interval) }}
- name: VRAM_EXPORTER_OTLP_ENDPOINT
  value: {{ .Values.otlp.endpoint | quote }}
{{- if .Values.otlp.headersSecret }}
- name: VRAM_EXPORTER_OTLP_HEADERS_FILE
  value: /etc/vram-exporter/otlp/headers
{{- end }}
{{- if .Values.otlp.caConfigMap }}
- name: VRAM_EXPORTER_OTLP_CA_FILE
  value: /etc/vram-exporter/otlp-ca/ca.crt
{{- end }}
{{- end }}
{{- if and (or .Values.dcgm.enabled .Values.otlp.endpoint) (not .Values.kubernetes.apiAccess) }}
# For the label Hostname and the attribute host.name. With API access the variable is set above.
- name: VRAM_EXPORTER_KUBERNETES_NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end }}
{{- range $key, $value := .Values.config }}
- name: VRAM_EXPORTER_{{ $key | upper | replace "." "_" | replace "-" "_" }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}

{{- define "vram-exporter.volumeMounts" -}}
{{- if .Values.web.configSecret }}
# The folder is mounted, not its files: a mounted file would not change when the secret does.
- name: web-config
  mountPath: /etc/vram-exporter/web
  readOnly: true
{{- end }}
{{- if and .Values.dcgm.enabled .Values.dcgm.collectors.configMap }}
- name: dcgm-collectors
  mountPath: /etc/vram-exporter/dcgm
  readOnly: true
{{- end }}
{{- if and .Values.otlp.endpoint .Values.otlp.headersSecret }}
- name: otlp-headers
  mountPath: /etc/vram-exporter/otlp
  readOnly: true
{{- end }}
{{- if and .Values.otlp.endpoint .Values.otlp.caConfigMap }}
- name: otlp-ca
  mountPath: /etc/vram-exporter/otlp-ca
  readOnly: true
{{- end }}
{{- if .Values.kubernetes.podResources.enabled }}
- name: pod-resources
  mountPath: /var/lib/kubelet/pod-resources
  readOnly: true
{{- end }}
{{- if .Values.allocator.enabled }}
- name: allocator-socket
  mountPath: /run/vram-exporter
{{- end }}
{{- if .Values.driver.hostPath }}
- name: driver
  mountPath: /host/driver
  readOnly: true
{{- end }}
{{- if .Values.hostUsers }}
- name: passwd
  mountPath: /host/passwd
  readOnly: true
{{- end }}
{{- end }}

{{- define "vram-exporter.volumes" -}}
{{- if .Values.web.configSecret }}
- name: web-config
  secret:
    secretName: {{ .Values.web.configSecret }}
{{- end }}
{{- if and .Values.dcgm.enabled .Values.dcgm.collectors.configMap }}
- name: dcgm-collectors
  configMap:
    name: {{ .Values.dcgm.collectors.configMap }}
{{- end }}
{{- if and .Values.otlp.endpoint .Values.otlp.headersSecret }}
- name: otlp-headers
  secret:
    secretName: {{ .Values.otlp.headersSecret }}
{{- end }}
{{- if and .Values.otlp.endpoint .Values.otlp.caConfigMap }}
- name: otlp-ca
  configMap:
    name: {{ .Values.otlp.caConfigMap }}
{{- end }}
{{- if .Values.kubernetes.podResources.enabled }}
# The folder is mounted, not the socket: a restarted kubelet creates a new socket.
- name: pod-resources
  hostPath:
    path: {{ .Values.kubernetes.podResources.hostPath }}
    type: Directory
{{- end }}
{{- if .Values.allocator.enabled }}
# The folder is mounted, not the socket: a restarted exporter creates a new socket.
- name: allocator-socket
  hostPath:
    path: {{ .Values.allocator.hostPath }}
    type: DirectoryOrCreate
{{- end }}
{{- if .Values.driver.hostPath }}
# The folder is mounted, not the file: an upgraded driver installs a new file.
- name: driver
  hostPath:
    path: {{ .Values.driver.hostPath }}
    type: Directory
{{- end }}
{{- if .Values.hostUsers }}
- name: passwd
  hostPath:
    path: /etc/passwd
    type: File
{{- end }}
{{- end }}
