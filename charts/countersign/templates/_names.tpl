{{/* The names and labels of all objects. A name ends with the chart name, unless the release name contains the chart name. */}}
{{- define "countersign.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "countersign.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "countersign.labels" -}}
{{ include "countersign.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: control-plane
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "countersign.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "countersign.name" .) -}}
{{- end }}

{{- define "countersign.claimName" -}}
{{- .Values.persistence.existingClaim | default (printf "%s-data" (include "countersign.name" .)) -}}
{{- end }}
