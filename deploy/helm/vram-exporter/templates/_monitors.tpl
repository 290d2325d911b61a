{{/* What the PodMonitors and ServiceMonitors have in common. Each template takes a dict: root, the chart's context; section, the name of the values;
     monitor, those values. */}}

{{/* A duration in milliseconds, in the forms of Prometheus and of the exporter. Units of less than a millisecond count as 0. */}}
{{- define "vram-exporter.milliseconds" -}}
{{- $sum := 0 }}
{{- range $part := regexFindAll "[0-9]+ *[A-Za-z]+" (toString .) -1 }}
{{- $unit := regexFind "[A-Za-z]+" $part }}
{{- $factor := 86400000 }}
{{- if regexMatch "^[nu]" $unit }}{{ $factor = 0 }}
{{- else if regexMatch "^(ms|msec|millis)$" $unit }}{{ $factor = 1 }}
{{- else if regexMatch "^s" $unit }}{{ $factor = 1000 }}
{{- else if regexMatch "^m(in.*)?$" $unit }}{{ $factor = 60000 }}
{{- else if regexMatch "^h" $unit }}{{ $factor = 3600000 }}
{{- end }}
{{- $sum = add $sum (mul (regexFind "[0-9]+" $part | int64) $factor) }}
{{- end }}
{{- $sum }}
{{- end }}

{{/* Refuses a time between two readings by a collector in which peaks would be lost: root, key (the value's name) and interval. */}}
{{- define "vram-exporter.checkInterval" -}}
{{- $window := index (.root.Values.config | default dict) "memory.peak-window" | default "60s" }}
{{- $limit := include "vram-exporter.milliseconds" $window | int64 }}
{{- if and (gt $limit 0) (gt (include "vram-exporter.milliseconds" .interval | int64) $limit) }}
{{- fail (printf "%s is %v, longer than the peak window of %v, so peaks would be lost: shorten it, or set memory.peak-window under config" .key .interval $window) }}
{{- end }}
{{- end }}

{{/* The metadata of a monitor: also takes name. */}}
{{- define "vram-exporter.monitorMetadata" -}}
{{- include "vram-exporter.checkInterval" (dict "root" .root "key" (print .section ".interval") "interval" .monitor.interval) }}
{{- if gt (include "vram-exporter.milliseconds" .monitor.scrapeTimeout | int64) (include "vram-exporter.milliseconds" .monitor.interval | int64) }}
{{- fail (printf "%s.scrapeTimeout is %s, longer than %s.interval (%s), which the operator refuses: shorten it" .section .monitor.scrapeTimeout .section .monitor.interval) }}
{{- end }}
name: {{ .name }}
namespace: {{ .monitor.namespace | default .root.Release.Namespace }}
labels:
  {{- include "vram-exporter.labelsWith" (dict "root" .root "added" (list .monitor.labels .monitor.additionalLabels)) | nindent 2 }}
{{- with .monitor.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The fields of a monitor's spec, except its selector and its endpoints. */}}
{{- define "vram-exporter.monitorSpec" -}}
{{- if and .monitor.namespace (ne .monitor.namespace .root.Release.Namespace) }}
namespaceSelector:
  matchNames: [{{ .root.Release.Namespace }}]
{{- end }}
sampleLimit: {{ .monitor.sampleLimit | int }}
{{- range $field := list "jobLabel" "targetLabels" "podTargetLabels" "attachMetadata" }}
{{- with index $.monitor $field }}
{{- toYaml (dict $field .) | nindent 0 }}
{{- end }}
{{- end }}
{{- with .monitor.spec }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* An endpoint of a monitor: also takes port and honorLabels, and either drop (the target labels to drop) or job (the label job, which can be
     empty). The user's relabelings follow the chart's. */}}
{{- define "vram-exporter.monitorEndpoint" -}}
- port: {{ .port }}
  interval: {{ .monitor.interval }}
  scrapeTimeout: {{ .monitor.scrapeTimeout }}
  honorLabels: {{ .honorLabels }}
  {{- if and (eq .root.Values.web.scheme "https") (not (.monitor.endpoint | default dict).scheme) }}
  scheme: https
  {{- end }}
  {{- with .monitor.endpoint }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  relabelings:
    # A pod's IP changes when the pod is replaced. The node's name does not, so the series continue.
    - action: replace
      sourceLabels: [__meta_kubernetes_pod_node_name]
      targetLabel: instance
    {{- with .drop }}
    - action: replace
      sourceLabels: [__meta_kubernetes_pod_node_name]
      targetLabel: node
    # The operator attaches these labels for the exporter's own pod. In the exporter's series, labels with the
    # same names identify the pod that holds the memory. Because of the conflict, Prometheus would rename those to
    # exported_namespace, exported_pod and exported_container.
    - action: labeldrop
      regex: {{ . }}
    {{- end }}
    {{- with .job }}
    - action: replace
      targetLabel: job
      replacement: {{ . | quote }}
    {{- end }}
    {{- with .monitor.relabelings }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .monitor.metricRelabelings }}
  metricRelabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
