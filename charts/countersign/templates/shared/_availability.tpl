{{/* Objects that keep enough pods of a server. The folder of this file belongs to both charts: the chart countersign-ext-authz has a link to it. */}}

{{/* A PodDisruptionBudget: (dict "root" $ "component" NAME). */}}
{{- define "countersign.podDisruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{- include "countersign.metadata" (dict "root" .root) | nindent 2 }}
spec:
  {{- with .root.Values.podDisruptionBudget }}
  {{- if not (kindIs "invalid" .minAvailable) }}
  minAvailable: {{ .minAvailable }}
  {{- else }}
  maxUnavailable: {{ .maxUnavailable }}
  {{- end }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  {{- end }}
  selector:
    matchLabels:
      {{- include "countersign.selectorLabels" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* How a Deployment replaces its pods. */}}
{{- define "countersign.rollout" -}}
{{- with .Values.strategy }}
strategy: {{- toYaml (eq .type "Recreate" | ternary (dict "type" .type) .) | nindent 2 }}
{{- end }}
{{- include "countersign.revisionHistory" . }}
{{- end }}

{{- define "countersign.revisionHistory" -}}
{{- if not (kindIs "invalid" .Values.revisionHistoryLimit) }}
revisionHistoryLimit: {{ .Values.revisionHistoryLimit }}
{{- end }}
{{- end }}

{{/* A HorizontalPodAutoscaler of the Deployment. */}}
{{- define "countersign.horizontalPodAutoscaler" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{- include "countersign.metadata" (dict "root" .) | nindent 2 }}
spec:
  scaleTargetRef: { apiVersion: apps/v1, kind: Deployment, name: {{ include "countersign.fullname" . }} }
  {{- with .Values.autoscaling }}
  minReplicas: {{ .minReplicas }}
  maxReplicas: {{ .maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target: { type: Utilization, averageUtilization: {{ .targetCPUUtilizationPercentage }} }
    {{- with .metrics }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .behavior }}
  behavior: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end }}
