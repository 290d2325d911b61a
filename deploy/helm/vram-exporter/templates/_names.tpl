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

{{/* The Services are told apart by their component, so that a ServiceMonitor selects one of them. */}}
{{- define "vram-exporter.dcgmName" -}}
{{- printf "%s-dcgm" (include "vram-exporter.fullname" . | trunc 58 | trimSuffix "-") }}
{{- end }}
