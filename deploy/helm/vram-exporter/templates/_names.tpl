{{/* Names and labels of the objects. */}}

{{- define "vram-exporter.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "vram-exporter.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "vram-exporter.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "vram-exporter.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* ClusterRoles have no namespace: two releases with the same name in two namespaces must not share one. */}}
{{- define "vram-exporter.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "vram-exporter.fullname" .) }}
{{- end }}

{{- define "vram-exporter.selectorLabels" -}}
app.kubernetes.io/name: {{ include "vram-exporter.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "vram-exporter.labels" -}}
{{ include "vram-exporter.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The chart's labels and those that the values add: root, and added, a list of dicts. A label that is in several has the last one's value, so
     that no key is in an object twice. */}}
{{- define "vram-exporter.labelsWith" -}}
{{- $labels := include "vram-exporter.labels" .root | fromYaml }}
{{- range $added := .added }}
{{- range $name, $value := $added }}
{{- $_ := set $labels $name $value }}
{{- end }}
{{- end }}
{{- toYaml $labels }}
{{- end }}

{{/* The annotations by which Prometheus finds a port: root and port. */}}
{{- define "vram-exporter.scrapeAnnotations" -}}
prometheus.io/scrape: "true"
prometheus.io/scheme: {{ .root.Values.web.scheme }}
prometheus.io/port: {{ .port | quote }}
prometheus.io/path: /metrics
{{- end }}

{{/* The Services are told apart by their component, so that a ServiceMonitor selects one of them. */}}
{{- define "vram-exporter.dcgmName" -}}
{{- printf "%s-dcgm" (include "vram-exporter.fullname" . | trunc 58 | trimSuffix "-") }}
{{- end }}
