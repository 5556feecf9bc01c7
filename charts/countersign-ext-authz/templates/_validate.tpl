{{/* Fails if values are missing or contradict each other, with the value to set. The schema checks each value alone. */}}
{{- define "countersign-ext-authz.validate" -}}
{{- include "countersign.checkSettings" (list . (dict
  "listen" "set listenAddress. The ports of the pods are fixed, and service.port is that of the Service"
  "rules" "set rules"
  "sync.urls" "set syncUrls"
  "sync.ca" "set ca"
  "sync.keys" "set keys"
  "copy.directory" "set copy.enabled")) }}
{{- if not .Values.syncUrls }}
  {{- fail "syncUrls is required: the URL of the control plane's sync port, such as https://countersign.identity.svc:8444" }}
{{- end }}
{{- if not .Values.keys.existingSecret }}
  {{- fail "keys.existingSecret is required: the name of a Secret whose key `keys` contains API keys of scope sync, one per line (countersign key create --scope sync --out keys)" }}
{{- end }}
{{- if and (ne .Values.kind "Deployment") .Values.autoscaling.enabled }}
  {{- fail (printf "autoscaling.enabled is true, but kind is %s, whose pods the chart cannot scale: set autoscaling.enabled to false" .Values.kind) }}
{{- end }}
{{- if and .Values.tests.controlPlaneUrl (include "countersign-ext-authz.usesSocket" .) }}
  {{- fail "tests.controlPlaneUrl is set, but `helm test` cannot reach a sidecar at a Unix socket: set tests.controlPlaneUrl to an empty text" }}
{{- end }}
{{- if and .Values.tests.trustsImage (include "countersign.hasCa" .Values.tests.ca) }}
  {{- fail "tests.trustsImage and tests.ca are both set: set one of them" }}
{{- end }}
{{- if eq .Values.kind "Sidecar" }}
  {{- range $name := list "podMonitor" "serviceMonitor" "networkPolicy" }}
  {{- if (get $.Values $name).enabled }}
    {{- fail (printf "%s.enabled is true, but kind is Sidecar, whose pods belong to another chart: set %s.enabled to false, and write the object in that chart. prometheusRule.jobs then names the job of its monitor" $name $name) }}
  {{- end }}
  {{- end }}
{{- end }}
{{- include "countersign.checkMetricsFrom" . }}
{{- include "countersign.checkMetadata" . }}
{{- include "countersign.checkIpFamilies" (list . "service") }}
{{- include "countersign.checkCa" (list "ca" .Values.ca) }}
{{- include "countersign.checkCa" (list "tests.ca" .Values.tests.ca) }}
{{- include "countersign.checkImage" (list . "image") }}
{{- if .Values.tests.controlPlaneUrl }}
  {{- include "countersign.checkImage" (list . "cliImage") }}
{{- end }}
{{- end }}

{{/* Whether the sidecar listens on a Unix socket. */}}
{{- define "countersign-ext-authz.usesSocket" -}}
{{- if or (eq .Values.kind "Sidecar") (and (eq .Values.kind "DaemonSet") (eq .Values.daemonSet.listen "socket")) }}true{{ end -}}
{{- end }}
