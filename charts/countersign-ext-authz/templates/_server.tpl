{{/* The container and the volumes of the sidecar, which are the same in a Deployment, in a DaemonSet and in the pods of other charts. */}}

{{/* The pod template of the Deployment and of the DaemonSet. */}}
{{- define "countersign-ext-authz.podTemplate" -}}
metadata:
  {{- include "countersign.podMetadata" (dict "root" . "component" "ext-authz" "checksum" (include "countersign-ext-authz.config" .)) | nindent 2 }}
spec:
  {{- include "countersign.podSpec" . | nindent 2 }}
  {{- include "countersign.placement" . | nindent 2 }}
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with .Values.initContainers }}
  initContainers: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - {{- include "countersign-ext-authz.container" . | nindent 6 }}
      {{- include "countersign.lifecycle" . | nindent 6 }}
    {{- with .Values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes: {{- include "countersign-ext-authz.volumes" . | nindent 4 }}
    {{- if include "countersign-ext-authz.usesSocket" . }}
    - name: countersign-socket
      # The directory must exist and belong to the user of the container: the kubelet would create it for root.
      hostPath: { path: {{ .Values.daemonSet.hostPath }}, type: Directory }
    {{- end }}
{{- end }}

{{/* The sidecar as a native sidecar container, for the initContainers of a pod of another chart, which depends on this chart with
`kind: Sidecar`: include "countersign-ext-authz.sidecarContainer" (index .Subcharts "countersign-ext-authz"). */}}
{{- define "countersign-ext-authz.sidecarContainer" -}}
{{ include "countersign-ext-authz.container" . }}
# Kubernetes starts the container before the other containers, and stops it after them.
restartPolicy: Always
{{- end }}

{{/* The volumes of this container. The Envoy container mounts `countersign-socket` too. */}}
{{- define "countersign-ext-authz.sidecarVolumes" -}}
{{ include "countersign-ext-authz.volumes" . }}
- name: countersign-socket
  emptyDir: {}
{{- end }}

{{- define "countersign-ext-authz.container" -}}
name: countersign-ext-authz
image: {{ include "countersign.image" (dict "root" . "image" .Values.image) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: ["--config", "/etc/countersign/config.toml"]
env:
  - { name: COUNTERSIGN_SYNC__KEYS_FILE, value: /keys/keys }
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.extraEnvFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  {{- if not (include "countersign-ext-authz.usesSocket" .) }}
  - { name: grpc, containerPort: 9191 }
  {{- end }}
  - { name: admin, containerPort: 9092 }
{{- with .Values.startupProbe }}
startupProbe: {{- toYaml . | nindent 2 }}
{{- end }}
livenessProbe: {{- toYaml .Values.livenessProbe | nindent 2 }}
readinessProbe: {{- toYaml .Values.readinessProbe | nindent 2 }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
resources: {{- toYaml .Values.resources | nindent 2 }}
volumeMounts:
  - { name: countersign-config, mountPath: /etc/countersign, readOnly: true }
  - { name: countersign-keys, mountPath: /keys, readOnly: true }
  {{- if .Values.rules }}
  - { name: countersign-rules, mountPath: /rules, readOnly: true }
  {{- end }}
  {{- if .Values.copy.enabled }}
  - { name: countersign-copy, mountPath: /copy }
  {{- end }}
  {{- if include "countersign.hasCa" .Values.ca }}
  - { name: countersign-ca, mountPath: /ca, readOnly: true }
  {{- end }}
  {{- if include "countersign-ext-authz.servesTls" . }}
  - { name: countersign-tls, mountPath: /tls, readOnly: true }
  {{- end }}
  {{- if include "countersign.hasCa" .Values.tls.clientCa }}
  - { name: countersign-client-ca, mountPath: /client-ca, readOnly: true }
  {{- end }}
  {{- if include "countersign-ext-authz.usesSocket" . }}
  - { name: countersign-socket, mountPath: /run/countersign }
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "countersign-ext-authz.volumes" -}}
- name: countersign-config
  configMap: { name: {{ include "countersign.fullname" . }} }
- name: countersign-keys
  secret:
    secretName: {{ .Values.keys.existingSecret }}
    defaultMode: 0440
    items: [{ key: {{ .Values.keys.existingSecretKey }}, path: keys }]
{{- if .Values.rules }}
- name: countersign-rules
  configMap: { name: {{ include "countersign.fullname" . }}-rules }
{{- end }}
{{- if .Values.copy.enabled }}
- name: countersign-copy
  emptyDir: { sizeLimit: {{ .Values.copy.sizeLimit }} }
{{- end }}
{{- if include "countersign.hasCa" .Values.ca }}
{{ include "countersign.caVolume" (list "countersign-ca" .Values.ca) }}
{{- end }}
{{- if include "countersign-ext-authz.servesTls" . }}
{{ include "countersign.tlsVolume" (list "countersign-tls" (include "countersign-ext-authz.tlsSecretName" .)) }}
{{- end }}
{{- if include "countersign.hasCa" .Values.tls.clientCa }}
{{ include "countersign.caVolume" (list "countersign-client-ca" .Values.tls.clientCa) }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
