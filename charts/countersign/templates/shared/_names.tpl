{{/* Names, labels and images. The folder of this file belongs to both charts: the chart countersign-ext-authz has a link to it. */}}

{{/* The name of the objects. It ends with the name of the chart, unless the name of the release contains it. */}}
{{- define "countersign.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "countersign.selectorLabels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "countersign.labels" -}}
{{ include "countersign.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: countersign
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The metadata of an object: (dict "root" $ "name" NAME "labels" {} "annotations" {}). Without a name, it is that of the release. */}}
{{- define "countersign.metadata" -}}
name: {{ .name | default (include "countersign.fullname" .root) }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "countersign.labels" .root | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "countersign.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "countersign.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{/* The reference of an image: (dict "root" $ "image" .Values.image). A digest takes precedence over a tag. */}}
{{- define "countersign.image" -}}
{{- $repository := ternary .image.repository (printf "%s/%s" .image.registry .image.repository) (empty .image.registry) -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{/* The reference of the image of the command line, which is usually in the same registry and of the same version as the main image. */}}
{{- define "countersign.cliImage" -}}
{{- $shared := dict "registry" (.Values.cliImage.registry | default .Values.image.registry) "tag" (.Values.cliImage.tag | default .Values.image.tag) -}}
{{- include "countersign.image" (dict "root" . "image" (merge $shared .Values.cliImage)) -}}
{{- end }}
