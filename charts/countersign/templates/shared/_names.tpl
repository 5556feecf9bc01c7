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

{{/* Maps as one map in YAML: (list MAP...). Of several values of a key, the last one is used, even if it is empty, which `merge` would
skip. So no key appears twice. */}}
{{- define "countersign.mergedMaps" -}}
{{- $merged := dict }}
{{- range . }}
{{- range $key, $value := . }}
{{- $_ := set $merged $key $value }}
{{- end }}
{{- end }}
{{- toYaml $merged }}
{{- end }}

{{/* The labels of an object or of pods: (list $ MORE...). */}}
{{- define "countersign.labels" -}}
{{- $root := first . }}
{{- $labels := dict
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/part-of" "countersign"
  "app.kubernetes.io/managed-by" $root.Release.Service
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") }}
{{- include "countersign.mergedMaps" (concat (list $labels (include "countersign.selectorLabels" $root | fromYaml) $root.Values.commonLabels) (rest .)) }}
{{- end }}

{{/* Fails if the labels or annotations of a value contain a name that the chart itself needs: (list VALUE CONTENT NAMES INSTEAD). */}}
{{- define "countersign.checkNames" -}}
{{- $value := index . 0 }}
{{- $content := index . 1 }}
{{- $instead := index . 3 }}
{{- range index . 2 }}
{{- if hasKey $content . }}
{{- fail (printf "%s contains %s, which the chart sets itself: remove it. %s" $value . $instead) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "countersign.checkMetadata" -}}
{{- $selectors := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" }}
{{- $instead := "Selectors use this label: nameOverride and the name of the release set its value" }}
{{- include "countersign.checkNames" (list "commonLabels" .Values.commonLabels $selectors $instead) }}
{{- include "countersign.checkNames" (list "podLabels" .Values.podLabels $selectors $instead) }}
{{- include "countersign.checkNames" (list "podAnnotations" .Values.podAnnotations (list "checksum/config") "An annotation with another name restarts the pods, too") }}
{{- end }}

{{/* The metadata of an object: (dict "root" $ "name" NAME "labels" {} "annotations" {}). Without a name, it is that of the release. */}}
{{- define "countersign.metadata" -}}
name: {{ .name | default (include "countersign.fullname" .root) }}
namespace: {{ .root.Release.Namespace }}
labels: {{- include "countersign.labels" (list .root .labels) | nindent 2 }}
{{- if or .annotations .root.Values.commonAnnotations }}
annotations: {{- include "countersign.mergedMaps" (list .root.Values.commonAnnotations .annotations) | nindent 2 }}
{{- end }}
{{- end }}

{{/* The metadata of the pods of a job: (list $ COMPONENT). */}}
{{- define "countersign.jobPodMetadata" -}}
{{- $root := index . 0 -}}
labels: {{- include "countersign.labels" (list $root (dict "app.kubernetes.io/component" (index . 1))) | nindent 2 }}
{{- with $root.Values.commonAnnotations }}
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

{{/* Fails if nothing names the registry of an image, because a container engine would then take it from docker.io/library: (list $ "cliImage"). */}}
{{- define "countersign.checkImage" -}}
{{- $values := (index . 0).Values }}
{{- $name := index . 1 }}
{{- $image := get $values $name }}
{{- if not (or $image.registry $values.image.registry (regexMatch "^(localhost|[^/]*[.:][^/]*)/" $image.repository)) }}
{{- fail (printf "%s.registry is required: the registry to which you pushed the images, such as registry.example.com/identity. For images that you loaded into the nodes, it is the beginning of their names, such as localhost or docker.io/library" $name) }}
{{- end }}
{{- end }}
