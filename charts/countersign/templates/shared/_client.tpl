{{/* The environment of the command line in pods: (dict "url" URL "ca" CA). Its home directory is a volume of the pod. */}}
{{- define "countersign.clientEnv" -}}
- { name: HOME, value: /home/nonroot }
- { name: COUNTERSIGN_URL, value: {{ .url | quote }} }
{{- if include "countersign.hasCa" .ca }}
- { name: COUNTERSIGN_CA, value: /ca/ca.crt }
{{- end }}
{{- end }}

{{/* A container of a test that runs one command of the command line. */}}
{{- define "countersign.testStep" -}}
name: {{ .step.name }}
image: {{ .client.image | quote }}
imagePullPolicy: {{ .client.imagePullPolicy }}
args: {{- toYaml .step.args | nindent 2 }}
{{- if .env }}
env: {{- .env | nindent 2 }}
  {{- if .mints }}
  - { name: COUNTERSIGN_HUMAN_TOKEN_FILE, value: /home/nonroot/human-token }
  {{- else if .root.Values.tests.existingSecret }}
  - name: COUNTERSIGN_HUMAN_TOKEN
    valueFrom: { secretKeyRef: { name: {{ .root.Values.tests.existingSecret }}, key: human-token, optional: true } }
  {{- end }}
{{- end }}
securityContext: {{- toYaml .root.Values.securityContext | nindent 2 }}
resources: {{- include "countersign.testResources" .root | nindent 2 }}
volumeMounts:
  - { name: home, mountPath: /home/nonroot }
  {{- if include "countersign.hasCa" .ca }}
  - { name: ca, mountPath: /ca, readOnly: true }
  {{- end }}
{{- end }}

{{- define "countersign.testResources" -}}
requests: { cpu: 10m, memory: 16Mi }
limits: { memory: 128Mi }
{{- end }}
