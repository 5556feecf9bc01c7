{{/* The pod template of the control plane, which is the same in a StatefulSet (SQLite) and in a Deployment (PostgreSQL). */}}
{{- define "countersign.podTemplate" -}}
metadata:
  {{- include "countersign.podMetadata" (dict "root" . "component" "control-plane" "checksum" (include (print $.Template.BasePath "/configmap.yaml") .)) | nindent 2 }}
spec:
  {{- include "countersign.podSpec" . | nindent 2 }}
  {{- include "countersign.placement" . | nindent 2 }}
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with .Values.initContainers }}
  initContainers: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: control-plane
      image: {{ include "countersign.image" (dict "root" . "image" .Values.image) | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: ["--config", "/etc/countersign/config.toml"]
      env:
        {{- include "countersign.databaseEnv" . | nindent 8 }}
        {{- if .Values.redis.existingSecret }}
        - { name: COUNTERSIGN_REDIS__URL_FILE, value: /redis/url }
        {{- end }}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .Values.extraEnvFrom }}
      envFrom: {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - { name: api, containerPort: 8443 }
        - { name: sync, containerPort: 8444 }
        - { name: admin, containerPort: 9090 }
      startupProbe: {{- toYaml .Values.startupProbe | nindent 8 }}
      livenessProbe: {{- toYaml .Values.livenessProbe | nindent 8 }}
      readinessProbe: {{- toYaml .Values.readinessProbe | nindent 8 }}
      {{- include "countersign.lifecycle" . | nindent 6 }}
      securityContext: {{- toYaml .Values.securityContext | nindent 8 }}
      resources: {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        - { name: config, mountPath: /etc/countersign, readOnly: true }
        - { name: tls, mountPath: /tls, readOnly: true }
        - { name: data, mountPath: /data }
        {{- include "countersign.databaseMounts" . | nindent 8 }}
        {{- if .Values.redis.existingSecret }}
        - { name: redis, mountPath: /redis, readOnly: true }
        {{- end }}
        {{- if include "countersign.hasCa" .Values.redis.ca }}
        - { name: redis-ca, mountPath: /redis-ca, readOnly: true }
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with .Values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: config
      configMap: { name: {{ include "countersign.fullname" . }} }
    {{- include "countersign.tlsVolume" (list "tls" (include "countersign.tlsSecretName" .)) | nindent 4 }}
    {{- if not (include "countersign.usesSqlite" .) }}
    # With PostgreSQL, the process keeps nothing in this directory.
    - name: data
      emptyDir: {}
    {{- else if .Values.persistence.existingClaim }}
    - name: data
      persistentVolumeClaim: { claimName: {{ .Values.persistence.existingClaim }} }
    {{- end }}
    {{- include "countersign.databaseVolumes" . | nindent 4 }}
    {{- if .Values.redis.existingSecret }}
    - name: redis
      secret:
        secretName: {{ .Values.redis.existingSecret }}
        defaultMode: 0440
        items: [{ key: {{ .Values.redis.existingSecretKey }}, path: url }]
    {{- end }}
    {{- if include "countersign.hasCa" .Values.redis.ca }}
    {{- include "countersign.caVolume" (list "redis-ca" .Values.redis.ca) | nindent 4 }}
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
