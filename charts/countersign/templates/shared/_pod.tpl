{{/* Parts of pods. The folder of this file belongs to both charts: the chart countersign-ext-authz has a link to it. */}}

{{/* What all pods of a chart have in common: the fields of a pod spec that no workload changes. The Pod Security Standard is
`restricted`. */}}
{{- define "countersign.podSpec" -}}
serviceAccountName: {{ include "countersign.serviceAccountName" . }}
# The processes do not use the Kubernetes API.
automountServiceAccountToken: false
# With service links, Kubernetes would add environment variables such as COUNTERSIGN_PORT for the Service, and an unknown
# COUNTERSIGN_ variable prevents the start.
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.hostAliases }}
hostAliases: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The fields by which the scheduler distributes the pods of a server. */}}
{{- define "countersign.placement" -}}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{- toYaml (merge (dict) . (dict "labelSelector" (dict "matchLabels" (include "countersign.selectorLabels" $ | fromYaml)))) | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The metadata of the pods of a server: (dict "root" $ "component" NAME "checksum" CONTENT). The process reads its settings only at the start, so
the annotation restarts the pods when the content changes. */}}
{{- define "countersign.podMetadata" -}}
labels: {{- include "countersign.labels" (list .root .root.Values.podLabels (dict "app.kubernetes.io/component" .component)) | nindent 2 }}
annotations: {{- include "countersign.mergedMaps" (list .root.Values.commonAnnotations .root.Values.podAnnotations (dict "checksum/config" (.checksum | sha256sum))) | nindent 2 }}
{{- end }}

{{/* The preStop hook. Kubernetes removes a pod from Services while the hook sleeps, so that no new connection reaches a process that
stops. */}}
{{- define "countersign.lifecycle" -}}
{{- if gt (int .Values.preStopSleepSeconds) 0 }}
lifecycle:
  preStop:
    sleep: { seconds: {{ .Values.preStopSleepSeconds }} }
{{- end }}
{{- end }}

{{/* The address of a port in the settings: (list $ PORT). */}}
{{- define "countersign.listenAddress" -}}
{{- printf (ternary "[%s]:%d" "%s:%d" (contains ":" (index . 0).Values.listenAddress)) (index . 0).Values.listenAddress (index . 1) -}}
{{- end }}

{{/* The type of a Service, and the families of its addresses: (list TYPE .Values.service). */}}
{{- define "countersign.serviceType" -}}
type: {{ index . 0 }}
{{- with (index . 1).ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with (index . 1).ipFamilies }}
ipFamilies: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Fails if a Service has IPv6 addresses, but its pods do not listen at them: (list $ "service"). */}}
{{- define "countersign.checkIpFamilies" -}}
{{- $values := (index . 0).Values }}
{{- $name := index . 1 }}
{{- with get $values $name }}
{{- if and (ne $values.listenAddress "::") (or (has "IPv6" .ipFamilies) (hasSuffix "DualStack" .ipFamilyPolicy)) }}
{{- fail (printf "%s.ipFamilyPolicy or %s.ipFamilies gives the Service an IPv6 address, at which the pods do not listen: set listenAddress to `::`" $name $name) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Fails if both a Secret and a ConfigMap contain a CA: (list NAME CA). */}}
{{- define "countersign.checkCa" -}}
{{- $ca := index . 1 -}}
{{- if and $ca.existingSecret $ca.existingConfigMap }}
{{- fail (printf "%s.existingSecret and %s.existingConfigMap are both set: set one of them" (index . 0) (index . 0)) }}
{{- end }}
{{- end }}

{{/* The volume with the CA of a Secret or ConfigMap, which may contain more, in the file ca.crt: (list VOLUME CA). */}}
{{- define "countersign.caVolume" -}}
{{- $items := printf "[{ key: %q, path: ca.crt }]" (index . 1).key -}}
- name: {{ index . 0 }}
  {{- with (index . 1).existingSecret }}
  secret: { secretName: {{ . }}, defaultMode: 0440, items: {{ $items }} }
  {{- end }}
  {{- with (index . 1).existingConfigMap }}
  configMap: { name: {{ . }}, items: {{ $items }} }
  {{- end }}
{{- end }}

{{- define "countersign.hasCa" -}}
{{- if or .existingSecret .existingConfigMap }}true{{ end -}}
{{- end }}
