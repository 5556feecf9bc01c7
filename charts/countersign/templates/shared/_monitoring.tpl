{{/* Objects of the Prometheus operator and Grafana. The folder of this file belongs to both charts: the chart countersign-ext-authz has a link to it. */}}

{{/* Fails if the NetworkPolicy of the release locks out the Prometheus of its monitors. */}}
{{- define "countersign.checkMetricsFrom" -}}
{{- if and (or .Values.podMonitor.enabled .Values.serviceMonitor.enabled) .Values.networkPolicy.enabled (not .Values.networkPolicy.metricsFrom) }}
{{- fail "podMonitor.enabled or serviceMonitor.enabled is true, but with networkPolicy.enabled nobody can connect to the admin port: set networkPolicy.metricsFrom to the pods of Prometheus, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]" }}
{{- end }}
{{- end }}

{{/* A monitor of the admin port: (dict "root" $ "kind" "PodMonitor" "values" .Values.podMonitor "component" NAME). */}}
{{- define "countersign.monitor" -}}
apiVersion: monitoring.coreos.com/v1
kind: {{ .kind }}
metadata: {{- include "countersign.metadata" (dict "root" .root "labels" .values.labels) | nindent 2 }}
spec:
  selector:
    matchLabels:
      {{- include "countersign.selectorLabels" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
  {{ ternary "podMetricsEndpoints" "endpoints" (eq .kind "PodMonitor") }}:
    - port: admin
      path: /metrics
      interval: {{ .values.interval }}
      {{- with .values.scrapeTimeout }}
      scrapeTimeout: {{ . }}
      {{- end }}
      {{- with .values.relabelings }}
      relabelings: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.metricRelabelings }}
      metricRelabelings: {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end }}

{{/* The Service that a ServiceMonitor finds, for the admin port only: (dict "root" $ "component" NAME). */}}
{{- define "countersign.metricsService" -}}
apiVersion: v1
kind: Service
metadata: {{- include "countersign.metadata" (dict "root" .root "name" (printf "%s-metrics" (include "countersign.fullname" .root)) "labels" (dict "app.kubernetes.io/component" .component)) | nindent 2 }}
spec:
  clusterIP: None
  # Prometheus must see pods that are not ready, too.
  publishNotReadyAddresses: true
  selector:
    {{- include "countersign.selectorLabels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
  ports:
    - { name: admin, port: {{ .port }}, targetPort: admin }
{{- end }}

{{/* A selector of the targets of the release, or of `prometheusRule.jobs`. The Prometheus operator names the job of a PodMonitor after
its namespace and name, and that of a ServiceMonitor after its Service. Empty without a monitor. */}}
{{- define "countersign.targets" -}}
{{- $jobs := list }}
{{- if .Values.podMonitor.enabled }}
{{- $jobs = append $jobs (printf "%s/%s" .Release.Namespace (include "countersign.fullname" .)) }}
{{- end }}
{{- if .Values.serviceMonitor.enabled }}
{{- $jobs = append $jobs (printf "%s-metrics" (include "countersign.fullname" .)) }}
{{- end }}
{{- if .Values.prometheusRule.jobs }}
{{- printf "job=~%s" (toJson .Values.prometheusRule.jobs) }}
{{- else if $jobs }}
{{- printf "namespace=%s, job=~%s" (toJson .Release.Namespace) (join "|" $jobs | toJson) }}
{{- end }}
{{- end }}

{{/* The rules of a file: (dict "root" $ "file" PATH). `up` is the only metric that other programs have too. */}}
{{- define "countersign.prometheusRule" -}}
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {{- include "countersign.metadata" (dict "root" .root "labels" .root.Values.prometheusRule.labels) | nindent 2 }}
spec:
  {{- $rules := .root.Files.Get .file }}
  {{- with .root.Values.prometheusRule.documentationUrl }}
  {{- $rules = $rules | replace "runbook_url: " (printf "runbook_url: %s/" (trimSuffix "/" .)) }}
  {{- end }}
  {{- with include "countersign.targets" .root }}
  {{- $rules = regexReplaceAllLiteral "\\bup\\{.*?\\}" $rules (printf "up{%s}" .) }}
  {{- end }}
  {{- $rules | nindent 2 }}
{{- end }}

{{/* The dashboards of a folder: (dict "root" $ "files" GLOB). */}}
{{- define "countersign.dashboards" -}}
apiVersion: v1
kind: ConfigMap
metadata: {{- include "countersign.metadata" (dict "root" .root "name" (printf "%s-dashboards" (include "countersign.fullname" .root)) "labels" .root.Values.dashboards.labels "annotations" .root.Values.dashboards.annotations) | nindent 2 }}
data:
  {{- range $path, $content := .root.Files.Glob .files }}
  {{ base $path }}: |
    {{- toString $content | nindent 4 }}
  {{- end }}
{{- end }}
