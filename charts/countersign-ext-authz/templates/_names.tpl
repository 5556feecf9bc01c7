{{/* The names and labels of all objects. A name ends with the chart name, unless the release name contains the chart name. */}}
{{- define "countersign-ext-authz.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "countersign-ext-authz.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "countersign-ext-authz.labels" -}}
{{ include "countersign-ext-authz.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: ext-authz
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "countersign-ext-authz.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "countersign-ext-authz.name" .) -}}
{{- end }}

